//! The Python functions that the native walks call for meaning.
//!
//! The package passes them once, with [`set_hooks`]: the core names no module of Python.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Declares the functions: fields with their names in `_src/hooks.py`.
macro_rules! hooks {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        pub struct Hooks {
            $($(#[$doc])* pub $name: Py<PyAny>,)*
            /// The module of the exceptions.
            errors: Py<PyAny>,
        }

        impl Hooks {
            fn of(hooks: &Bound<'_, PyAny>, errors: Bound<'_, PyAny>) -> PyResult<Self> {
                Ok(Self {
                    $($name: hooks.getattr(stringify!($name))?.unbind(),)*
                    errors: errors.unbind(),
                })
            }
        }
    };
}

hooks! {
    /// `classify(value) -> Class`: the kind of a value.
    classify,
    /// `explain(value) -> str`: why a value cannot be a leaf.
    explain,
    /// `host_view(array) -> numpy.ndarray | None`: a jax array in host memory.
    host_view,
    /// `start_transfer(array) -> shards`: starts to bring another jax array to the host.
    start_transfer,
    /// `finish_transfer(shards) -> list[(start, numpy.ndarray)]`: waits for its end.
    finish_transfer,
    /// `to_contiguous(array) -> numpy.ndarray`: a copy in C order and native byte order.
    to_contiguous,
    /// `describe_dtype(dtype) -> (name, native)`: the name of a dtype in files.
    describe_dtype,
    /// `resolve_dtype(name) -> dtype`: the dtype with this name.
    resolve_dtype,
    /// `describe_sharding(sharding) -> (mesh, spec, memory) | None`: how arrays are split over
    /// devices.
    describe_sharding,
    /// `resolve_sharding(mesh, spec, memory) -> NamedSharding | None`: the same split here.
    resolve_sharding,
    /// `abstract_array(shape, dtype, weak_type, sharding) -> jax.ShapeDtypeStruct`.
    abstract_array,
    /// `unwrap_key(key) -> (impl, data)`: the content of a typed PRNG key.
    unwrap_key,
    /// `wrap_key(impl, data) -> key`: the inverse.
    wrap_key,
    /// `expand(node) -> (state, final)`: the state of a container.
    expand,
    /// `fixed_fields(node) -> FixedFields | None`: the fields that all nodes of its type have.
    fixed_fields,
    /// `restore_child(target, state, name, restore)`: a child of any kind.
    restore_child,
    /// `is_abstract_array(value) -> bool`: whether a leaf of jax has only a shape and a dtype.
    is_abstract_array,
    /// `check_unique_keys(mapping)`: raises unless `str` keeps the keys apart.
    check_unique_keys,
    /// `flatten_node(node) -> (name, fields, version, data, children) | None`: a container and its
    /// type.
    flatten_node,
    /// `find_node_type(name, fields, version, or_none, static) -> NodeType | None`: the type of
    /// this name.
    find_node_type,
    /// `unknown_types(types) -> error`: the error about a file's unregistered types.
    unknown_types,
    /// `upgrades(name, version) -> bool`: whether nodes of this version are upgraded.
    upgrades,
    /// `is_named(type, name) -> bool`: whether a name in a file stands for this type.
    is_named,
    /// `fill_holes(data, path, static, type, told) -> (data, unfilled)`: static data with its
    /// placeholders filled, and a report of unfilled ones, of which `told` were reported before; no
    /// report if `told` is `None`.
    fill_holes,
    /// `hole_error(unfilled) -> error`: the error about all unfilled placeholders.
    hole_error,
    /// `reduce_value(value) -> (name, value)`: a value as one that can be encoded.
    reduce_value,
    /// `rebuild_value(name, value) -> value`: the inverse.
    rebuild_value,
    /// `is_key(value) -> bool`: whether a value of a file may be hashed and compared.
    is_key,
    /// `holds_code(data) -> bool`: whether encoded static data have callable parts.
    holds_code,
    /// `make_ext(code, data)`: the object for an extension of others.
    make_ext,
    /// `decode_error(class, message, offset, path) -> error`: an error of ours and of msgpack's
    /// class.
    decode_error,
    /// `printable(text) -> str`: escaped for people.
    printable,
    /// `Trail(above, part)`: a path whose text is made on demand.
    trail,
}

static HOOKS: PyOnceLock<Hooks> = PyOnceLock::new();

/// See `_core.pyi`.
#[pyfunction]
pub fn set_hooks(hooks: &Bound<'_, PyAny>, errors: Bound<'_, PyAny>) -> PyResult<()> {
    let found = Hooks::of(hooks, errors)?;
    // Those of the first import stay: walks hold them.
    drop(HOOKS.set(hooks.py(), found));
    Ok(())
}

impl Hooks {
    pub fn get(py: Python<'_>) -> PyResult<&'static Self> {
        // Every walk calls this before it needs much memory.
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
}
