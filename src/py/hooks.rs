//! The Python functions that the native walks ask about meaning.
//!
//! The package hands them over once, with [`set_hooks`]: the core names no module of Python.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// The functions, by what they answer.
pub struct Hooks {
    /// `classify(value) -> int`: what kind of thing is this?
    pub classify: Py<PyAny>,
    /// `explain(value) -> str`: why can this not be a leaf?
    pub explain: Py<PyAny>,
    /// `host_view(array) -> numpy.ndarray | None`: a jax array in host memory.
    pub host_view: Py<PyAny>,
    /// `start_transfer(array) -> shards`: begins to bring another jax array to the host.
    pub start_transfer: Py<PyAny>,
    /// `finish_transfer(shards) -> list[(start, numpy.ndarray)]`: waits for that.
    pub finish_transfer: Py<PyAny>,
    /// `to_contiguous(array) -> numpy.ndarray`: in C order, in native byte order.
    pub to_contiguous: Py<PyAny>,
    /// `describe_dtype(dtype) -> (name, native)`: how is this dtype written?
    pub describe_dtype: Py<PyAny>,
    /// `resolve_dtype(name) -> dtype`: which dtype has this name?
    pub resolve_dtype: Py<PyAny>,
    /// `describe_sharding(sharding) -> (mesh, spec, memory) | None`: how are arrays split over devices?
    pub describe_sharding: Py<PyAny>,
    /// `resolve_sharding(mesh, spec, memory) -> NamedSharding | None`: how are they split here?
    pub resolve_sharding: Py<PyAny>,
    /// `abstract_array(shape, dtype, weak_type, sharding) -> jax.ShapeDtypeStruct`: an array without its
    /// bytes.
    pub abstract_array: Py<PyAny>,
    /// `unwrap_key(key) -> (impl, data)`: what is inside a typed PRNG key?
    pub unwrap_key: Py<PyAny>,
    /// `wrap_key(impl, data) -> key`: the reverse.
    pub wrap_key: Py<PyAny>,
    /// `expand(node) -> (state, final)`: the state of a container.
    pub expand: Py<PyAny>,
    /// `fixed_fields(node) -> FixedFields | None`: what all nodes of its type consist of.
    pub fixed_fields: Py<PyAny>,
    /// `restore_child(target, state, name, restore)`: a child of any kind.
    pub restore_child: Py<PyAny>,
    /// `is_abstract_array(value) -> bool`: is this a leaf of jax with a shape and a dtype?
    pub is_abstract_array: Py<PyAny>,
    /// `check_unique_keys(mapping)`: raises unless `str` keeps the keys apart.
    pub check_unique_keys: Py<PyAny>,
    /// `flatten_node(node) -> (name, fields, version, data, children) | None`: a container and its type.
    pub flatten_node: Py<PyAny>,
    /// `find_node_type(name, fields, version, or_none, static) -> NodeType | None`: which type has this name?
    pub find_node_type: Py<PyAny>,
    /// `unknown_types(types) -> error`: the error about those of a file's types that nothing knows.
    pub unknown_types: Py<PyAny>,
    /// `upgrades(name, version) -> bool`: is what was saved in this version to be upgraded?
    pub upgrades: Py<PyAny>,
    /// `is_named(type, name) -> bool`: does a name in a file stand for this type?
    pub is_named: Py<PyAny>,
    /// `fill_holes(data, path, static, type, told) -> (data, unfilled)`: static data with what was not
    /// saved, and what tells of holes that nothing fills, after so many that are told, or `None`.
    pub fill_holes: Py<PyAny>,
    /// `hole_error(unfilled) -> error`: the error about all holes that nothing fills.
    pub hole_error: Py<PyAny>,
    /// `reduce_value(value) -> (name, value)`: what is a value made of?
    pub reduce_value: Py<PyAny>,
    /// `rebuild_value(name, value) -> value`: the reverse.
    pub rebuild_value: Py<PyAny>,
    /// `is_key(value) -> bool`: may a value of a file be hashed and compared?
    pub is_key: Py<PyAny>,
    /// `holds_code(data) -> bool`: do encoded static data have parts that could be called?
    pub holds_code: Py<PyAny>,
    /// `make_ext(code, data)`: the object for an extension that is not ours.
    pub make_ext: Py<PyAny>,
    /// `decode_error(class, message, offset, path) -> error`: an error of ours and of msgpack's class.
    pub decode_error: Py<PyAny>,
    /// `printable(text) -> str`: text as it is shown to people.
    pub printable: Py<PyAny>,
    /// `Trail(above, part)`: a path whose text is made where it is shown.
    pub trail: Py<PyAny>,
    /// The module of the exceptions.
    errors: Py<PyAny>,
}

static HOOKS: PyOnceLock<Hooks> = PyOnceLock::new();

/// Takes the functions and the exceptions; see `_core.pyi`.
#[pyfunction]
pub fn set_hooks(hooks: &Bound<'_, PyAny>, errors: Bound<'_, PyAny>) -> PyResult<()> {
    let found = Hooks::of(hooks, errors)?;
    // Those of the first import stay: walks hold them.
    drop(HOOKS.set(hooks.py(), found));
    Ok(())
}

impl Hooks {
    /// The functions that were handed over.
    pub fn get(py: Python<'_>) -> PyResult<&'static Self> {
        // Every walk comes by here before it needs much.
        super::memory::keep_reserve()?;
        Self::given(py)
    }

    /// An exception class of ours.
    pub fn error<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        Self::given(py)?.errors.bind(py).getattr(name)
    }

    fn given(py: Python<'_>) -> PyResult<&'static Self> {
        HOOKS.get(py).ok_or_else(|| {
            PyRuntimeError::new_err(
                "the core is used before its package: `import treepack` has to end first, which \
                 calls set_hooks",
            )
        })
    }

    fn of(hooks: &Bound<'_, PyAny>, errors: Bound<'_, PyAny>) -> PyResult<Self> {
        let hook = |name: &str| -> PyResult<Py<PyAny>> { Ok(hooks.getattr(name)?.unbind()) };
        Ok(Self {
            classify: hook("classify")?,
            explain: hook("explain")?,
            host_view: hook("host_view")?,
            start_transfer: hook("start_transfer")?,
            finish_transfer: hook("finish_transfer")?,
            to_contiguous: hook("to_contiguous")?,
            describe_dtype: hook("describe_dtype")?,
            resolve_dtype: hook("resolve_dtype")?,
            describe_sharding: hook("describe_sharding")?,
            resolve_sharding: hook("resolve_sharding")?,
            abstract_array: hook("abstract_array")?,
            unwrap_key: hook("unwrap_key")?,
            wrap_key: hook("wrap_key")?,
            expand: hook("expand")?,
            fixed_fields: hook("fixed_fields")?,
            restore_child: hook("restore_child")?,
            is_abstract_array: hook("is_abstract_array")?,
            check_unique_keys: hook("check_unique_keys")?,
            flatten_node: hook("flatten_node")?,
            find_node_type: hook("find_node_type")?,
            unknown_types: hook("unknown_types")?,
            upgrades: hook("upgrades")?,
            is_named: hook("is_named")?,
            fill_holes: hook("fill_holes")?,
            hole_error: hook("hole_error")?,
            reduce_value: hook("reduce_value")?,
            rebuild_value: hook("rebuild_value")?,
            is_key: hook("is_key")?,
            holds_code: hook("holds_code")?,
            make_ext: hook("make_ext")?,
            decode_error: hook("decode_error")?,
            printable: hook("printable")?,
            trail: hook("Trail")?,
            errors: errors.unbind(),
        })
    }
}
