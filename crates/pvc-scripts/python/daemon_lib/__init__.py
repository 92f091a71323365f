"""Library of PVC, as far as provisioner scripts have it."""
