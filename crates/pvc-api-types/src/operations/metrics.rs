//! Metrics, open to scrapers.

operations! { "metrics":
    /// All metrics.
    GetMetrics { GET "/metrics", Anybody, read -> text }

    /// How the cluster is doing.
    GetMetricsHealth { GET "/metrics/health", Anybody, read -> text }

    /// Resources of the cluster and how much of them is used.
    GetMetricsResource { GET "/metrics/resource", Anybody, read -> text }
}
