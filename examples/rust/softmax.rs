//! Softmax of a row, in place: cargo run --example softmax
use simdattn_sys::{simdattn_softmax, simdattn_version, View};
use std::{ffi::CStr, ptr::null};

fn main() {
    let mut row = [0.0f32, 1.0, 2.0, 3.0];
    let view = View { data: row.as_mut_ptr().cast(), dtype: 0, shape: [1, 4], stride: [4, 1] };
    // SAFETY: the view describes `row`, which outlives the calls; an output may be exactly its input.
    let (version, status) = unsafe {
        (CStr::from_ptr(simdattn_version()), simdattn_softmax(&view, &view, null(), null()))
    };
    assert_eq!(status.code, 0, "{:?}", unsafe { CStr::from_ptr(status.detail) });
    println!("simdattn {}: {row:.5?}", version.to_str().unwrap());
}
