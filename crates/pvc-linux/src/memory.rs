/// One heap for all threads of this process. To be called before it has more than one.
///
/// The C library makes a heap for each thread, up to eight for each CPU, and each keeps what it once
/// took: a daemon that answers requests of megabytes on whatever thread is free then holds those
/// megabytes many times. Threads still have their own small caches, so nothing here waits for it.
pub fn one_heap() {
    #[cfg(target_env = "gnu")]
    {
        use nix::libc::{M_ARENA_MAX, mallopt};
        // SAFETY: sets a number inside of the allocator, which locks it itself.
        let is_set = unsafe { mallopt(M_ARENA_MAX, 1) };
        debug_assert_eq!(is_set, 1, "every glibc knows this setting");
    }
}
