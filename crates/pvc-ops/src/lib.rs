//! Each thing an operator can ask for, as one function over store and ports.
