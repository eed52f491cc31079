//! Sets `Py_GIL_DISABLED` for `src/py` if the interpreter has no GIL.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "python")]
    pyo3_build_config::use_pyo3_cfgs();
}
