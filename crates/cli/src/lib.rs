//! The natrix commands and the terminal dashboard; talks to the control socket only.
