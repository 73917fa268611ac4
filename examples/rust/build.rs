//! Links libsimdattn.a: SIMDATTN_LIB_DIR is its folder, or else pkg-config knows it.
use std::{env, process::Command, str};

fn main() {
    println!("cargo:rerun-if-env-changed=SIMDATTN_LIB_DIR");
    let folder = env::var("SIMDATTN_LIB_DIR").unwrap_or_else(|_| {
        let asked = Command::new("pkg-config").args(["--variable=libdir", "simdattn"]).output().expect("pkg-config");
        str::from_utf8(&asked.stdout).unwrap().trim().to_string()
    });
    println!("cargo:rustc-link-search=native={folder}");
    println!("cargo:rustc-link-lib=static=simdattn");
    println!("cargo:rustc-link-lib=m");
}
