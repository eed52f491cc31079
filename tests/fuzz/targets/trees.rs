//! Any bytes are a tree of Python objects, or an error of treepack. What comes of a tree as its own
//! template is the tree, whether it is built while it is read or after that.
//!
//! It has an interpreter of its own, in which the core is a built-in module.
#![no_main]

use std::ffi::CStr;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// What is done with each input.
const READ: &CStr = c"
import importlib.machinery, importlib.util, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
spec = importlib.machinery.ModuleSpec('treepack._core', importlib.machinery.BuiltinImporter)
core = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(core)

import jax, numpy as np, treepack
from treepack import serialization
from typing import NamedTuple

class Pair(NamedTuple):
    a: object
    b: object

treepack.register_namedtuple(Pair, serialized_name='Pair')

def outcome(read, errors=(treepack.TreepackError, MemoryError)):
    try:
        return read()
    except errors as error:
        return type(error), str(error)

def text(value):
    if isinstance(value, np.ndarray):
        return f'{value.dtype}{value.shape}{value.tobytes()}'
    if isinstance(value, dict):
        return '{' + ','.join(f'{key!r}:{text(item)}' for key, item in value.items()) + '}'
    if isinstance(value, (list, tuple)):
        return type(value).__name__ + '(' + ','.join(map(text, value)) + ')'
    return f'{type(value)}{value!r}'

def by_template(template, data):
    # A template may be wrong by itself, as with the keys 0 and '0'.
    found = outcome(lambda: serialization.from_bytes(template, data), ValueError)
    like, core.restore_like = core.restore_like, lambda *_: None
    try:
        expected = outcome(lambda: serialization.from_bytes(template, data), ValueError)
    finally:
        core.restore_like = like
    assert text(found) == text(expected), (found, expected)

def read(data):
    state = outcome(lambda: serialization.msgpack_restore(data))
    outcome(lambda: treepack.abstract(data))
    outcome(lambda: serialization.msgpack_restore(data, copy=True))
    for unknown in ('error', 'dict'):
        tree = outcome(lambda: treepack.loads(data, unknown=unknown, arrays='numpy'))
        by_template(tree, data)
    by_template(state, data)
    by_template([state, Pair(1, {})], data)
";

unsafe extern "C" {
    /// The initialization of the core, which `pymodule` exports.
    fn PyInit__core() -> *mut pyo3::ffi::PyObject;
}

fn read() -> &'static Py<PyAny> {
    static READER: OnceLock<Py<PyAny>> = OnceLock::new();
    READER.get_or_init(|| {
        // SAFETY: no interpreter runs yet, and the name lives forever.
        unsafe { pyo3::ffi::PyImport_AppendInittab(c"treepack._core".as_ptr(), Some(PyInit__core)) };
        Python::initialize();
        Python::attach(|py| {
            let module = PyModule::from_code(py, READ, c"trees.py", c"trees");
            let module = module.inspect_err(|error| error.print(py)).unwrap();
            module.getattr("read").unwrap().unbind()
        })
    })
}

fuzz_target!(|data: &[u8]| {
    // What makes names refer to the crate is that it is linked.
    let _ = treepack::wire::MAX_DEPTH;
    let read = read();
    Python::attach(|py| {
        if let Err(error) = read.call1(py, (PyBytes::new(py, data),)) {
            error.print(py);
            std::process::abort();
        }
    });
});
