//! Claims about requests to the API.

/// No request makes the server fail, and each refusal says what is wrong and what to do.
pub fn request(bytes: &[u8]) {
    let _status = ::api::fuzzing::request(bytes);
}
