//! The C interface, as far as the example needs it; `bindgen simdattn_c.h` writes all of it.
use std::os::raw::{c_char, c_void};

#[repr(C)]
pub struct View<const N: usize> {
    pub data: *mut c_void, // *const of simdattn_const_viewN: the same bytes
    pub dtype: i32,        // 0: SIMDATTN_DTYPE_F32
    pub shape: [i64; N],
    pub stride: [i64; N],
}

#[repr(C)]
pub struct Status {
    pub code: i32, // 0: SIMDATTN_OK
    pub detail: *const c_char,
}

extern "C" {
    pub fn simdattn_version() -> *const c_char;
    pub fn simdattn_softmax(x: *const View<2>, out: *const View<2>, lse: *const View<1>, exec: *const c_void) -> Status;
}
