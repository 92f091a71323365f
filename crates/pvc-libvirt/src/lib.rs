//! The Hypervisor on libvirt.
