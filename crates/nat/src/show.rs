//! The data for `natrix show`, `find` and `why`.

pub mod view;
