//! An interpreter of Python of the target's own, in which the core is a built-in module. Lines of the
//! package that an input reaches count like places in the core.

use std::ffi::CString;
use std::sync::OnceLock;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// How often lines were reached: a sum of a file's name and a line is the place.
#[unsafe(link_section = "__libfuzzer_extra_counters")]
static mut COUNTERS: [u8; 1 << 16] = [0; 1 << 16];

unsafe extern "C" {
    /// The initialization of the core, which `pymodule` exports.
    fn PyInit__core() -> *mut pyo3::ffi::PyObject;
}

/// Calls `check` of the program with an input. An exception that comes out is a finding.
pub fn check(program: &str, data: &[u8]) {
    static CHECK: OnceLock<Py<PyAny>> = OnceLock::new();
    let check = CHECK.get_or_init(|| start(program));
    Python::attach(|py| {
        if let Err(error) = check.call1(py, (PyBytes::new(py, data),)) {
            error.print(py);
            std::process::abort();
        }
    });
}

fn start(program: &str) -> Py<PyAny> {
    // What makes names refer to the crate is that it is linked.
    let _ = treepack::format::wire::MAX_DEPTH;
    // SAFETY: no interpreter runs yet, and the name lives forever.
    unsafe { pyo3::ffi::PyImport_AppendInittab(c"treepack._core".as_ptr(), Some(PyInit__core)) };
    Python::initialize();
    Python::attach(|py| {
        let load = |code: &str, name: &str| {
            let [code, name] = [code, name].map(|it| CString::new(it).unwrap());
            let module = PyModule::from_code(py, &code, &name, &name);
            module.inspect_err(|error| error.print(py)).unwrap()
        };
        let prelude = load(include_str!("prelude.py"), "prelude");
        // SAFETY: the counters live forever, and are otherwise used between inputs only.
        let counters = unsafe {
            let object = pyo3::ffi::PyMemoryView_FromMemory(
                (&raw mut COUNTERS).cast(),
                1 << 16,
                pyo3::ffi::PyBUF_WRITE,
            );
            Bound::from_owned_ptr(py, object)
        };
        let check = load(program, "program").getattr("check").unwrap();
        let counting = prelude.getattr("counting").unwrap();
        counting.call1((check, counters)).unwrap().unbind()
    })
}
