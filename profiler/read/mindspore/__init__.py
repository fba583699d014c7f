"""MindSpore's own records: memory tracker, CPU profiler with the saved graph, MindInsight's pipelines."""
