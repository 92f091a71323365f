"""Exceptions of provisioner scripts; scripts import them from `daemon_lib.vmbuilder`."""


class ValidationError(Exception):
    """Error in what the script was given: a profile, a template, or an argument."""


class ClusterError(Exception):
    """Error of the cluster, such as a call that it could not carry out."""


class ProvisioningError(Exception):
    """Error while the VM is made."""


class TaskFailure(Exception):
    """Error of any other task."""


# Tracebacks have the names that scripts know.
for error in (ValidationError, ClusterError, ProvisioningError):
    error.__module__ = "daemon_lib.vmbuilder"
TaskFailure.__module__ = "daemon_lib.celery"
