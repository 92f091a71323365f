//! Metrics, open to scrapers.

operations! { "metrics":
    /// All metrics.
    GetMetrics { GET "/metrics", Anybody, read -> text "text/plain; charset=utf-8" }

    /// How the cluster is doing.
    GetMetricsHealth { GET "/metrics/health", Anybody, read -> text "text/plain; charset=utf-8" }

    /// What the cluster has and how much of it is used.
    GetMetricsResource {
        GET "/metrics/resource", Anybody, read -> text "text/plain; charset=utf-8"
    }
}
