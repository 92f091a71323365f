//! Metrics, open to scrapers.

operations! { "metrics":
    /// All metrics.
    ///
    /// Those of Ceph and ZooKeeper follow the others where there are a Ceph and a ZooKeeper. If
    /// they do not come, a comment at their place says why.
    GetMetrics { GET "/metrics", Anybody, read -> text }

    /// Metrics of Ceph.
    ///
    /// The page of Ceph's active manager, as it comes. 404 where there is no Ceph, 503 if the
    /// manager exports none or does not answer.
    GetMetricsCeph { GET "/metrics/ceph", Anybody, read -> text }

    /// State of the cluster, in numbers.
    GetMetricsHealth { GET "/metrics/health", Anybody, read -> text }

    /// Resources of the cluster and how much of them is used.
    GetMetricsResource { GET "/metrics/resource", Anybody, read -> text }

    /// Metrics of ZooKeeper.
    ///
    /// The page of the exporter on the primary node (port 9141), its lines sorted and without
    /// ZooKeeper's port in the names of servers. 404 where there is no ZooKeeper, 503 if the
    /// exporter does not answer.
    GetMetricsZookeeper { GET "/metrics/zookeeper", Anybody, read -> text }
}
