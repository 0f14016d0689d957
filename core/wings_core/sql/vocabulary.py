"""The vocabulary of SQL: the functions that a statement may call; all others are rejected.

It is that of filters, which keeps the memory of an expression in proportion to its rows, plus
aggregates, window functions and the clock. None reads files, settings or the environment, sleeps,
or multiplies its input.
"""

from wings_core.fetch.vocabulary import FUNCTIONS as FILTER_FUNCTIONS
from wings_core.fetch.vocabulary import words

_AGGREGATES = words(
    """
    any_value approx_count_distinct approx_quantile approx_top_k arbitrary arg_max
    arg_max_null arg_min arg_min_null argmax argmin array_agg avg bit_and bit_or bit_xor
    bool_and bool_or corr count count_if count_star countif covar_pop covar_samp entropy
    favg first fsum group_concat grouping grouping_id histogram kahan_sum kurtosis
    kurtosis_pop last list listagg mad max max_by mean median min min_by mode product
    quantile quantile_cont quantile_disc regr_avgx regr_avgy regr_count regr_intercept
    regr_r2 regr_slope regr_sxx regr_sxy regr_syy sem skewness stddev stddev_pop stddev_samp
    string_agg sum sumkahan sum_no_overflow var_pop var_samp variance
    """
)

_WINDOW_FUNCTIONS = words(
    """
    cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank
    rank_dense row_number
    """
)

_SCALARS = words(
    """
    age current_date current_localtime current_localtimestamp current_time current_timestamp
    gen_random_uuid get_current_date get_current_time get_current_timestamp ifnull map now
    nvl random replace struct_pack today transaction_timestamp typeof unnest uuid
    """
)

FUNCTIONS = FILTER_FUNCTIONS | _AGGREGATES | _WINDOW_FUNCTIONS | _SCALARS

TABLE_FUNCTIONS = frozenset({"generate_series", "range", "unnest"})

NODES = frozenset(
    {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE", "STATEMENT_NODE"}
)
"""Kinds of queries that only read."""

SOURCES = frozenset(
    {
        "BASE_TABLE",
        "EMPTY",
        "EXPRESSION_LIST",
        "JOIN",
        "PIVOT",
        "SHOW_REF",
        "SUBQUERY",
        "TABLE_FUNCTION",
    }
)
"""Kinds of sources after FROM."""

CLASSES = frozenset(
    {
        "BETWEEN",
        "CASE",
        "CAST",
        "COLLATE",
        "COLUMN_REF",
        "COMPARISON",
        "CONJUNCTION",
        "CONSTANT",
        "FUNCTION",
        "LAMBDA",
        "OPERATOR",
        "PARAMETER",
        "POSITIONAL_REFERENCE",
        "STAR",
        "SUBQUERY",
        "TYPE",
        "WINDOW",
    }
)
"""Classes of expressions."""
