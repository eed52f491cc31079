//! Python functions that the native walks call, where the meaning of a value decides.
//!
//! The package passes them once, with [`set_hooks`]. So the core imports no Python module.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Declares the hooks: fields with their names in `_src/hooks.py`.
macro_rules! hooks {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        pub struct Hooks {
            $($(#[$doc])* pub $name: Py<PyAny>,)*
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
    /// `classify(value, static) -> Class`; saves pass their option `static=`.
    classify,
    /// `explain(value) -> str`: why a value cannot be a leaf.
    explain,
    /// `is_abstract_array(value) -> bool`.
    is_abstract_array,
    /// `Transfer(array)`: copies a jax array to the host, by `start()` and `finish()`.
    /// `Transfer.view(array)` is an array in host memory, or `None`.
    transfer,
    /// `dtype(dtype or name) -> (dtype, name, native) | None`.
    dtype,
    /// `resolve_sharding(mesh, spec, memory) -> NamedSharding | None`.
    resolve_sharding,
    /// `abstract_array(shape, dtype, weak_type, sharding) -> jax.ShapeDtypeStruct`.
    abstract_array,
    /// `Key(impl, data)`, of typed PRNG keys, which `Key.of(array)` returns; `.wrapped()` is the
    /// array, or `None`; `.restored()` is the array, or its state.
    key,
    /// `expand(node) -> (state, final)`.
    expand,
    /// `fixed_fields(node) -> FixedFields | None`.
    fixed_fields,
    /// `Lookups(types, static, unknown_as_dict, is_part)`: node types and values for placeholders.
    /// `Lookups.upgrades(name, version)`: whether nodes need an upgrade.
    /// `Lookups.other_name(type, name)`: the name of a type; `None` if `name` stands for it, too.
    /// `Lookups.tied(tree, ties, parts) -> tree`: joins nodes of nnx that were saved as one.
    lookups,
    /// `static_data.reduce_value(value) -> (name, value)`, and `.rebuild_value(name, value)`.
    /// `static_data.is_key(value) -> bool`: whether to hash and compare a value of a file.
    static_data,
    /// `msgpack.make(code, data)`: an extension type.
    /// `msgpack.decode_error(class, message, offset, path) -> error`, also of msgpack's class.
    msgpack,
    /// `printable(text) -> str`.
    printable,
    /// `Trail(above, part)`: a path whose text is made on demand.
    trail,
}

static HOOKS: PyOnceLock<Hooks> = PyOnceLock::new();

#[pyfunction]
pub fn set_hooks(hooks: &Bound<'_, PyAny>, errors: Bound<'_, PyAny>) -> PyResult<()> {
    let resolved = Hooks::of(hooks, errors)?;
    // Walks hold the hooks of the first import, which stay.
    drop(HOOKS.set(hooks.py(), resolved));
    Ok(())
}

impl Hooks {
    pub fn get(py: Python<'_>) -> PyResult<&'static Self> {
        // Every walk calls this before it needs much memory.
        super::memory::keep_reserve()?;
        Self::given(py)
    }

    pub fn error<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        Self::given(py)?.errors.bind(py).getattr(name)
    }

    fn given(py: Python<'_>) -> PyResult<&'static Self> {
        HOOKS.get(py).ok_or_else(|| {
            PyRuntimeError::new_err(
                "the core is used before its package: `import treepack` must end first, which \
                 calls set_hooks",
            )
        })
    }
}
