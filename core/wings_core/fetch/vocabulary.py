"""The vocabulary of filters: the functions, types and operators that they may use.

The lists keep a filter's memory in proportion to the rows it looks at, since DuckDB's memory
limit does not count what lies between two functions (measured: `repeat('x', 1000000000)` takes
2 GB under a limit of 256 MiB, and nested `replace` grows without end). So nothing is allowed that
multiplies its input (`repeat`, `replace`, `lpad`, `range`, `list_transform`, `printf` …), what adds
up is counted, casts, whose quoting doubles nested text, may be nested a few times only, and a
lambda sees its own parameters alone. Measured at the limits: 0.5 GB for a batch of 16 MiB.

A regular expression is a constant: one for each row, out of the data, is compiled for each row, and
takes seconds on data that was written for it.
"""


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


_OPERATOR_FUNCTIONS = words(
    "+ - * / // % ^ ** & | ~ << >> @ || ~~ !~~ ~~* !~~* ~~~ ^@ && @> <@ ->>"
)

_MATH_FUNCTIONS = words(
    """
    abs acos add asin atan atan2 bit_count cbrt ceil ceiling cos cosh degrees divide even exp floor
    fmod gcd greatest greatest_common_divisor isfinite isinf isnan lcm least least_common_multiple
    ln log log10 log2 mod multiply pi pow power radians round round_even sign signbit sin sinh sqrt
    subtract tan tanh trunc xor
    """
)

_STRING_FUNCTIONS = words(
    """
    ascii bit_length char_length character_length chr concat contains ends_with hash ilike_escape
    instr lcase left len length like_escape lower ltrim md5 not_ilike_escape not_like_escape
    octet_length ord position prefix regexp_extract regexp_full_match regexp_matches reverse right
    rtrim sha256 split split_part starts_with str_split string_split strip_accents strlen strpos
    substr substring suffix translate trim ucase unicode upper
    """
)

_TIME_FUNCTIONS = words(
    """
    century date_add date_diff date_part date_sub date_trunc datediff datepart datesub datetrunc
    day dayname dayofmonth dayofweek dayofyear decade epoch epoch_ms epoch_ns epoch_us era hour
    isodow isoyear julian last_day make_date make_time make_timestamp make_timestamp_ms
    make_timestamp_ns make_timestamptz microsecond millennium millisecond minute month monthname
    nanosecond quarter second strftime strptime time_bucket timezone to_centuries to_days
    to_decades to_hours to_microseconds to_millennia to_milliseconds to_minutes to_months
    to_quarters to_seconds to_timestamp to_weeks to_years try_strptime week weekday weekofyear year
    yearweek
    """
)

_NESTED_FUNCTIONS = words(
    """
    array_contains array_extract array_filter array_has array_has_all array_has_any array_indexof
    array_length array_position array_slice cardinality element_at filter flatten if list_any_value
    list_avg list_bool_and list_bool_or list_contains list_count list_distinct list_element
    list_extract list_filter list_first list_has list_has_all list_has_any list_indexof
    list_intersect list_last list_max list_min list_position list_slice list_sort list_sum
    list_unique list_value map_contains map_extract map_extract_value map_keys map_values nullif
    row struct_extract
    """
)

JSON_FUNCTIONS = words(
    """
    json_array_length json_contains json_exists json_extract json_extract_path
    json_extract_path_text json_extract_string json_keys json_type json_valid json_value ->>
    """
)

FUNCTIONS = (
    _OPERATOR_FUNCTIONS
    | _MATH_FUNCTIONS
    | _STRING_FUNCTIONS
    | _TIME_FUNCTIONS
    | _NESTED_FUNCTIONS
    | JSON_FUNCTIONS
)
"""The functions of a filter, and those operators that DuckDB parses as functions."""

PATTERN_FUNCTIONS = frozenset({"regexp_extract", "regexp_full_match", "regexp_matches"})
"""Their second argument is a regular expression: `~` and `SIMILAR TO` are parsed as these too."""

LAMBDA_FUNCTIONS = frozenset({"array_filter", "filter", "list_filter"})

CONCATENATIONS = frozenset({"||", "concat"})

TYPES = words(
    """
    bigint binary blob bool boolean bytea char date datetime dec decimal double float float4 float8
    hugeint int int1 int128 int16 int2 int32 int4 int64 int8 integer integral interval json logical
    long numeric real short signed smallint string text time timestamp timestamp_ms timestamp_ns
    timestamp_s timestamp_us timestamptz timetz tinyint ubigint uhugeint uint128 uint16 uint32
    uint64 uint8 uinteger usmallint utinyint uuid varbinary varchar
    """
) | {"time with time zone", "timestamp with time zone"}

OPERATORS = words(
    """
    ARRAY_CONSTRUCTOR ARRAY_EXTRACT ARRAY_SLICE COMPARE_IN COMPARE_NOT_IN OPERATOR_COALESCE
    OPERATOR_IS_NOT_NULL OPERATOR_IS_NULL OPERATOR_NOT OPERATOR_TRY STRUCT_EXTRACT
    """
)
