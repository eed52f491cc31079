//! The Python functions that the native walks ask about meaning.
//!
//! They are looked up once. Each is documented where it is defined.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// The functions, by what they answer.
pub struct Hooks {
    /// `_leaves.classify(value) -> int`: what kind of thing is this?
    pub classify: Py<PyAny>,
    /// `_leaves.explain(value) -> str`: why can this not be a leaf?
    pub explain: Py<PyAny>,
    /// `_leaves.host_view(array) -> numpy.ndarray | None`: a jax array in host memory.
    pub host_view: Py<PyAny>,
    /// `_leaves.start_transfer(array) -> shards`: begins to bring another jax array to the host.
    pub start_transfer: Py<PyAny>,
    /// `_leaves.finish_transfer(shards) -> list[(start, numpy.ndarray)]`: waits for that.
    pub finish_transfer: Py<PyAny>,
    /// `_leaves.to_contiguous(array) -> numpy.ndarray`: in C order, in native byte order.
    pub to_contiguous: Py<PyAny>,
    /// `_dtypes.describe(dtype) -> (name, native)`: how is this dtype written?
    pub describe_dtype: Py<PyAny>,
    /// `_dtypes.resolve(name) -> dtype`: which dtype has this name?
    pub resolve_dtype: Py<PyAny>,
    /// `_leaves.abstract(shape, dtype) -> jax.ShapeDtypeStruct`: an array without its bytes.
    pub abstract_array: Py<PyAny>,
    /// `_prng.unwrap(key) -> (impl, data)`: what is inside a typed PRNG key?
    pub unwrap_key: Py<PyAny>,
    /// `_prng.wrap(impl, data) -> key`: the reverse.
    pub wrap_key: Py<PyAny>,
    /// `_state_dict.expand(node) -> (state, final)`: the state of a container.
    pub expand: Py<PyAny>,
    /// `_nodes.fixed_fields(node) -> (names, make) | None`: what all nodes of its type consist of.
    pub fixed_fields: Py<PyAny>,
    /// `_state_dict.restore_child(target, state, name, restore)`: a child of any kind.
    pub restore_child: Py<PyAny>,
    /// `_leaves.ABSTRACT_ARRAYS`: types with a shape and a dtype that are leaves.
    pub abstract_arrays: Py<PyAny>,
    /// `_state_dict.check_unique_keys(mapping)`: raises unless `str` keeps the keys apart.
    pub check_unique_keys: Py<PyAny>,
    /// `_node_types.reduce(node) -> (name, fields, data, children)`: a container and its type.
    pub reduce_node: Py<PyAny>,
    /// `_node_types.find(name, fields, or_none) -> NodeType | None`: which type has this name?
    pub find_node_type: Py<PyAny>,
    /// `_auxdata.reduce(value) -> (name, value)`: what is a value made of?
    pub reduce_value: Py<PyAny>,
    /// `_auxdata.rebuild(name, value) -> value`: the reverse.
    pub rebuild_value: Py<PyAny>,
    /// `_ext.make(code, data)`: the object for an extension that is not ours.
    pub make_ext: Py<PyAny>,
}

impl Hooks {
    /// The functions, imported on first use.
    pub fn get(py: Python<'_>) -> PyResult<&'static Self> {
        static HOOKS: PyOnceLock<Hooks> = PyOnceLock::new();
        // Every walk comes by here before it needs much.
        super::memory::keep_reserve();
        HOOKS.get_or_try_init(py, || {
            let hook = |module: &str, name: &str| -> PyResult<Py<PyAny>> {
                Ok(py.import(module)?.getattr(name)?.unbind())
            };
            Ok(Self {
                classify: hook("treepack._leaves", "classify")?,
                explain: hook("treepack._leaves", "explain")?,
                host_view: hook("treepack._leaves", "host_view")?,
                start_transfer: hook("treepack._leaves", "start_transfer")?,
                finish_transfer: hook("treepack._leaves", "finish_transfer")?,
                to_contiguous: hook("treepack._leaves", "to_contiguous")?,
                describe_dtype: hook("treepack._dtypes", "describe")?,
                resolve_dtype: hook("treepack._dtypes", "resolve")?,
                abstract_array: hook("treepack._leaves", "abstract")?,
                unwrap_key: hook("treepack._prng", "unwrap")?,
                wrap_key: hook("treepack._prng", "wrap")?,
                expand: hook("treepack._state_dict", "expand")?,
                fixed_fields: hook("treepack._nodes", "fixed_fields")?,
                restore_child: hook("treepack._state_dict", "restore_child")?,
                abstract_arrays: hook("treepack._leaves", "ABSTRACT_ARRAYS")?,
                check_unique_keys: hook("treepack._state_dict", "check_unique_keys")?,
                reduce_node: hook("treepack._node_types", "reduce")?,
                find_node_type: hook("treepack._node_types", "find")?,
                reduce_value: hook("treepack._auxdata", "reduce")?,
                rebuild_value: hook("treepack._auxdata", "rebuild")?,
                make_ext: hook("treepack._ext", "make")?,
            })
        })
    }
}
