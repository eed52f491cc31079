//! Passes on what the interpreter is like: `Py_GIL_DISABLED` for `src/py`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "python")]
    pyo3_build_config::use_pyo3_cfgs();
}
