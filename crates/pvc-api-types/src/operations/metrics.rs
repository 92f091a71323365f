//! Metrics, open to scrapers.

operations! { "metrics":
    /// All metrics.
    GetMetrics { GET "/metrics", Anybody, read -> text "text/plain; charset=utf-8" }

    /// How the cluster is doing.
    GetMetricsHealth { GET "/metrics/health", Anybody, read -> text "text/plain; charset=utf-8" }

    /// Resources of the cluster and how much of them is used.
    GetMetricsResource {
        GET "/metrics/resource", Anybody, read -> text "text/plain; charset=utf-8"
    }
}
