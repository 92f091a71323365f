//! What several crates' tests share: clocks that wait for nobody, a scripted hypervisor, synthetic clusters.
