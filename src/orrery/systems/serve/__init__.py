"""Serving: which machine answers which request, and in which order, when a model serves many.

The room's problems with their ports, the classics that answer them, and the published systems. The
names load when they are first used.
"""

from __future__ import annotations

from orrery.base.doors import door

_ROOM = "orrery.systems.serve"
_HOMES = {
    # the questions
    "Assigner": f"{_ROOM}.problems.dp_decode",
    "BranchPolicy": f"{_ROOM}.problems.branch_requests",
    "DNNEdgeServing": f"{_ROOM}.problems.dnn_edge_serving",
    "DPDecode": f"{_ROOM}.problems.dp_decode",
    "EdgePolicy": f"{_ROOM}.problems.dnn_edge_serving",
    "ElasticPolicy": f"{_ROOM}.problems.llm_elastic",
    "LLMBatching": f"{_ROOM}.problems.llm_batching",
    "LLMBranches": f"{_ROOM}.problems.llm_branches",
    "LLMElastic": f"{_ROOM}.problems.llm_elastic",
    "LLMFleet": f"{_ROOM}.problems.llm_fleet",
    "LLMParallelism": f"{_ROOM}.problems.llm_parallelism",
    "LLMPhases": f"{_ROOM}.problems.llm_phases",
    "LLMRouting": f"{_ROOM}.problems.llm_routing",
    "LLMScaling": f"{_ROOM}.problems.llm_scaling",
    "LLMTenants": f"{_ROOM}.problems.llm_tenants",
    "Parallelism": f"{_ROOM}.problems.llm_parallelism",
    "PhasePolicy": f"{_ROOM}.problems.llm_phases",
    "Planner": f"{_ROOM}.problems.llm_fleet",
    "ServingProblem": f"{_ROOM}.problems.cluster",
    # the ports
    "Autoscaler": "orrery.models.ports",
    "Router": "orrery.models.ports",
    "Scheduler": "orrery.models.ports",
    # routers
    "KVAware": f"{_ROOM}.baselines.kv_aware",
    "LeastKV": f"{_ROOM}.baselines.least_kv",
    "LeastOutstanding": f"{_ROOM}.baselines.least_outstanding",
    "PowerOfTwo": f"{_ROOM}.baselines.power_of_two",
    "RandomChoice": f"{_ROOM}.baselines.random_choice",
    "RoundRobin": f"{_ROOM}.baselines.round_robin",
    "SessionSticky": f"{_ROOM}.baselines.session_sticky",
    "ShortestQueue": f"{_ROOM}.baselines.shortest_queue",
    # assigners of data-parallel decode workers
    "DPLeastKV": f"{_ROOM}.baselines.dp_least_kv",
    "DPLeastOutstanding": f"{_ROOM}.baselines.dp_least_outstanding",
    "DPPowerOfTwo": f"{_ROOM}.baselines.dp_power_of_two",
    "DPRandom": f"{_ROOM}.baselines.dp_random",
    "DPRoundRobin": f"{_ROOM}.baselines.dp_round_robin",
    # schedulers
    "AgeingPriority": f"{_ROOM}.baselines.ageing_priority",
    "Orca": f"{_ROOM}.baselines.orca",
    "PriorityFirst": f"{_ROOM}.baselines.priority_first",
    "Sarathi": f"{_ROOM}.baselines.sarathi",
    "ShortestJob": f"{_ROOM}.baselines.shortest_job",
    "VllmV1": f"{_ROOM}.baselines.vllm_v1",
    "WeightedShares": f"{_ROOM}.baselines.weighted_shares",
    # autoscalers
    "AlwaysOn": f"{_ROOM}.baselines.always_on",
    "TargetTracking": f"{_ROOM}.baselines.target_tracking",
    # widths of answers that fork
    "FixedWidth": f"{_ROOM}.baselines.fixed_width",
    "IRPEager": f"{_ROOM}.baselines.irp_eager",
    "IRPOff": f"{_ROOM}.baselines.irp_off",
    "OracleWidth": f"{_ROOM}.baselines.oracle_width",
    # the two phases on a fixed number of devices
    "PhaseChunked": f"{_ROOM}.baselines.phase_chunked",
    "PhaseDisaggregated": f"{_ROOM}.baselines.phase_disaggregated",
    "PhaseStaticSplit": f"{_ROOM}.baselines.phase_static_split",
    "PhaseUnchunked": f"{_ROOM}.baselines.phase_unchunked",
    # degrees of tensor parallelism
    "TPAdaptiveCold": f"{_ROOM}.baselines.tp_adaptive_cold",
    "TPAutoscaleReload": f"{_ROOM}.baselines.tp_autoscale_reload",
    "TPSloQueue": f"{_ROOM}.baselines.tp_slo_queue",
    "TPStatic": f"{_ROOM}.baselines.tp_static",
    "TPStaticDisaggregated": f"{_ROOM}.baselines.tp_static_disaggregated",
    "TPWindowOracle": f"{_ROOM}.baselines.tp_window_oracle",
    # planners of fleets
    "BestFleetRival": f"{_ROOM}.baselines.best_fleet_rival",
    "FixedStrategy": f"{_ROOM}.baselines.fixed_strategy",
    "GreedyPerDollar": f"{_ROOM}.baselines.greedy_per_dollar",
    "IndependentFleets": f"{_ROOM}.baselines.independent_fleets",
    "MonolithicProgram": f"{_ROOM}.baselines.monolithic_program",
    "SingleGpuType": f"{_ROOM}.baselines.single_gpu_type",
    # elastic pools
    "ElasticSeparate": f"{_ROOM}.baselines.elastic_separate",
    "ElasticStaticSplit": f"{_ROOM}.baselines.elastic_static_split",
    "ElasticSynchronous": f"{_ROOM}.baselines.elastic_synchronous",
    # turns of a small machine
    "EdgeEDF": f"{_ROOM}.baselines.edge_edf",
    "EdgeFIFO": f"{_ROOM}.baselines.edge_fifo",
    "EdgeLargestQueue": f"{_ROOM}.baselines.edge_largest_queue",
    "EdgeRoundRobin": f"{_ROOM}.baselines.edge_round_robin",
    "EdgeShallowest": f"{_ROOM}.baselines.edge_shallowest",
    "EdgeShortestJob": f"{_ROOM}.baselines.edge_shortest_job",
    "EdgeSpatial": f"{_ROOM}.baselines.edge_spatial",
    # the published systems
    "BalanceRoute": f"{_ROOM}.balanceroute",
    "Coral": f"{_ROOM}.coral",
    "DriftSched": f"{_ROOM}.driftsched",
    "EdgeServing": f"{_ROOM}.edgeserving",
    "Nitsum": f"{_ROOM}.nitsum",
    "SemiPD": f"{_ROOM}.semi_pd",
    "Taper": f"{_ROOM}.taper",
    "XLLM": f"{_ROOM}.xllm",
}

__all__ = sorted(_HOMES)

__getattr__, __dir__ = door(__name__, _HOMES)
