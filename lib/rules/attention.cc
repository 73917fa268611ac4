#include "lib/rules/attention.h"

#include <algorithm>

namespace simdattn {
namespace {

#define SIMDATTN_OVERLAPS(output)     \
  {output ": overlaps q",             \
   output ": overlaps k",             \
   output ": overlaps v",             \
   output ": overlaps out",           \
   output ": overlaps lse",           \
   output ": overlaps acc",           \
   output ": overlaps max",           \
   output ": overlaps sum",           \
   output ": overlaps cu_q",          \
   output ": overlaps cu_k",          \
   output ": overlaps k.block_table", \
   output ": overlaps v.block_table", \
   output ": overlaps k.scales",      \
   output ": overlaps v.scales"}
struct OverlapText {
  const char* arrays[kAttentionArrays];
  const char* scoring[kScoringArrays];
};
#define SIMDATTN_OVERLAP_TEXT(output) {SIMDATTN_OVERLAPS(output), SIMDATTN_OVERLAPS_SCORING(output)}

Status check_varlen(const Attention& a) {
  SIMDATTN_REQUIRE(a.n_sequences >= 0 && a.n_sequences <= kMaxSize, Code::kRange,
                   "n_sequences: must be in 0 .. 2^30 - 1");
  SIMDATTN_REQUIRE(a.q.shape[0] == 1, Code::kShape, "q.shape[0]: must be 1 with cu_q");
  SIMDATTN_REQUIRE(a.cu_q[0] == 0, Code::kRange, "cu_q[0]: must be 0");
  SIMDATTN_REQUIRE(a.cu_q[a.n_sequences] == a.q.shape[2], Code::kShape, "cu_q: its last entry must be q.shape[2]");
  int32_t step = 0;  // negative if any is
  for (int64_t s = 0; s < a.n_sequences; ++s) step |= a.cu_q[s + 1] < a.cu_q[s] ? -1 : 0;
  SIMDATTN_REQUIRE(step >= 0, Code::kRange, "cu_q: must not decrease");
  return {};
}

/// `longest`: keys of the longest sequence.
Status check_varlen_keys(const Attention& a, int64_t* longest) {
  SIMDATTN_REQUIRE(a.k.batch == 1 && a.v.batch == 1, Code::kShape, "k.batch, v.batch: must be 1 with cu_k");
  SIMDATTN_REQUIRE(a.cu_k[0] == 0, Code::kRange, "cu_k[0]: must be 0");
  *longest = 0;
  for (int64_t s = 0; s < a.n_sequences; ++s) {
    SIMDATTN_REQUIRE(a.cu_k[s + 1] >= a.cu_k[s], Code::kRange, "cu_k: must not decrease");
    *longest = std::max<int64_t>(*longest, int64_t{a.cu_k[s + 1]} - a.cu_k[s]);
  }
  SIMDATTN_REQUIRE(a.cu_k[a.n_sequences] == a.k.keys(), Code::kShape, "cu_k: its last entry must be the tokens of k");
  return {};
}

/// Something that is written, against everything that has bytes so far.
Status check_written(const ByteSet& written, const Attention& a, const AttentionSizes& sizes,
                     const AttentionBytes& bytes, const OverlapText& text) {
  if (written.empty()) return {};
  for (int i = 0; i < bytes.count; ++i) {
    SIMDATTN_REQUIRE(!share_bytes(written, bytes.set[i]), Code::kOverlap, text.arrays[bytes.array[i]]);
  }
  if (!sizes.scoring_arrays) return {};
  const int overlapped = overlapped_scoring(written, a.scoring, sizes.scoring);
  SIMDATTN_REQUIRE(overlapped < 0, Code::kOverlap, text.scoring[overlapped]);
  return {};
}

bool absent(const Attention& a) { return a.out.data == nullptr && a.lse.data == nullptr && a.acc.data == nullptr; }

}  // namespace

Status check_attention_inputs(const Attention& a, Data data, AttentionSizes* sizes, AttentionBytes* bytes) {
  AttentionSizes& p = *sizes;
  SIMDATTN_REQUIRE(is_arithmetic(a.arithmetic), Code::kRange, "arithmetic: not an Arithmetic");
  SIMDATTN_CHECK(check_view(a.q, Accept::kElements, SIMDATTN_ARGUMENT("q"), bytes->next(), data));
  bytes->keep(kQ);
  const bool varlen = a.cu_q != nullptr;
  SIMDATTN_REQUIRE(varlen || a.cu_k == nullptr, Code::kNullPointer, "cu_q: null although cu_k is given");
  KvUse use;
  use.varlen = a.cu_k != nullptr;
  use.data = data;
  ByteSet scales;
  const auto keep_scales = [&](AttentionArray array) {
    if (scales.empty()) return;
    *bytes->next() = scales;
    bytes->keep(array);
  };
  SIMDATTN_CHECK(check_kv(a.k, use, kKeysText, bytes->next(), &scales));
  bytes->keep(kK);
  keep_scales(kScalesK);
  use.rows_only = true;
  SIMDATTN_CHECK(check_kv(a.v, use, kValuesText, bytes->next(), &scales));
  bytes->keep(kV);
  keep_scales(kScalesV);

  p.d_qk = a.q.shape[3];
  p.d_v = a.v.dim;
  p.heads = a.q.shape[1];
  p.kv_heads = a.k.heads;
  SIMDATTN_REQUIRE(p.d_qk >= 1, Code::kShape, "q.shape[3]: the head dimension must be at least 1");
  SIMDATTN_REQUIRE(a.k.dim == p.d_qk, Code::kShape, "k.dim != q.shape[3]");
  SIMDATTN_REQUIRE(p.kv_heads >= 1, Code::kShape, "k.heads: there must be at least one key head");
  SIMDATTN_REQUIRE(a.v.heads == p.kv_heads, Code::kShape, "v.heads != k.heads");
  SIMDATTN_REQUIRE(a.v.keys() == a.k.keys(), Code::kShape,
                   a.v.length < 0 ? "v.tokens: not as many as k has" : "v.length: not as many as k has");
  p.group = group_of(p.heads, p.kv_heads);
  SIMDATTN_REQUIRE(p.group >= 0, Code::kShape, "q.shape[1]: query heads must be a multiple of key heads");

  p.sequences = a.q.shape[0];
  int64_t longest = a.k.keys();
  if (varlen) {
    SIMDATTN_CHECK(check_varlen(a));
    p.sequences = a.n_sequences;
  }
  if (a.cu_k != nullptr) {
    SIMDATTN_CHECK(check_varlen_keys(a, &longest));
  } else {
    SIMDATTN_REQUIRE(a.k.batch == p.sequences, Code::kShape, "k.batch: must be the number of sequences");
    SIMDATTN_REQUIRE(a.v.batch == p.sequences, Code::kShape, "v.batch: must be the number of sequences");
  }
  p.scoring = {p.sequences, a.q.shape[0], p.heads, a.q.shape[2], longest};
  p.scoring_arrays = has_arrays(a.scoring);
  return check_scoring(a.scoring, p.scoring, data);
}

Status check_attention_outputs(const Attention& a, const AttentionSizes& p, Data data, AttentionBytes* bytes) {
  const bool rows = a.q.shape[0] > 0 && a.q.shape[1] > 0 && a.q.shape[2] > 0;
  SIMDATTN_REQUIRE(!absent(a) || !rows || data == Data::kLater, Code::kNullPointer,
                   "out: null, and so are lse and the raw state: there is nothing to write");
  const bool raw = a.acc.data != nullptr || a.max.data != nullptr || a.sum.data != nullptr;
  SIMDATTN_REQUIRE(!raw || !rows || (a.acc.data != nullptr && a.max.data != nullptr && a.sum.data != nullptr),
                   Code::kNullPointer, "acc, max, sum: the raw state is all three of them");
  const std::array<int64_t, 4> out_shape = {a.q.shape[0], a.q.shape[1], a.q.shape[2], p.d_v};
  const std::array<int64_t, 3> row_shape = {a.q.shape[0], a.q.shape[1], a.q.shape[2]};
  const auto add = [&](AttentionArray array, const ByteSet& set) {
    *bytes->next() = set;
    bytes->keep(array);
  };
  if (a.cu_q != nullptr) add(kCuQ, ByteSet::of(a.cu_q, (a.n_sequences + 1) * 4));
  if (a.cu_k != nullptr) add(kCuK, ByteSet::of(a.cu_k, (a.n_sequences + 1) * 4));
  if (a.k.page_size > 0) add(kTableK, table_bytes(a.k));
  if (a.v.page_size > 0) add(kTableV, table_bytes(a.v));
  if (a.out.data != nullptr || (data == Data::kLater && a.out.shape[3] != 0)) {
    static constexpr OverlapText kOverlaps = SIMDATTN_OVERLAP_TEXT("out");
    SIMDATTN_CHECK(check_view(a.out, Accept::kElements, SIMDATTN_ARGUMENT("out"), bytes->next(), data));
    SIMDATTN_REQUIRE(same_numbers(a.out.shape, out_shape), Code::kShape,
                     "out.shape: must be [q.shape[0], q.shape[1], q.shape[2], v.dim]");
    SIMDATTN_CHECK(check_written(*bytes->next(), a, p, *bytes, kOverlaps));
    bytes->keep(kOut);
  }
  if (a.lse.data != nullptr) {
    static constexpr OverlapText kOverlaps = SIMDATTN_OVERLAP_TEXT("lse");
    SIMDATTN_CHECK(check_view(a.lse, Accept::kF32, SIMDATTN_ARGUMENT("lse"), bytes->next()));
    SIMDATTN_REQUIRE(same_numbers(a.lse.shape, row_shape), Code::kShape,
                     "lse.shape: must be the first three sizes of q");
    SIMDATTN_CHECK(check_written(*bytes->next(), a, p, *bytes, kOverlaps));
    bytes->keep(kLse);
  }
  if (!raw) return {};
  static constexpr OverlapText kAccText = SIMDATTN_OVERLAP_TEXT("acc");
  SIMDATTN_CHECK(check_view(a.acc, Accept::kF32, SIMDATTN_ARGUMENT("acc"), bytes->next()));
  SIMDATTN_REQUIRE(same_numbers(a.acc.shape, out_shape), Code::kShape,
                   "acc.shape: must be [q.shape[0], q.shape[1], q.shape[2], v.dim]");
  SIMDATTN_CHECK(check_written(*bytes->next(), a, p, *bytes, kAccText));
  bytes->keep(kAcc);
  static constexpr OverlapText kMaxText = SIMDATTN_OVERLAP_TEXT("max");
  SIMDATTN_CHECK(check_view(a.max, Accept::kF32, SIMDATTN_ARGUMENT("max"), bytes->next()));
  SIMDATTN_REQUIRE(same_numbers(a.max.shape, row_shape), Code::kShape, "max.shape: must be the first three sizes of q");
  SIMDATTN_CHECK(check_written(*bytes->next(), a, p, *bytes, kMaxText));
  bytes->keep(kMax);
  static constexpr OverlapText kSumText = SIMDATTN_OVERLAP_TEXT("sum");
  SIMDATTN_CHECK(check_view(a.sum, Accept::kF32, SIMDATTN_ARGUMENT("sum"), bytes->next()));
  SIMDATTN_REQUIRE(same_numbers(a.sum.shape, row_shape), Code::kShape, "sum.shape: must be the first three sizes of q");
  SIMDATTN_CHECK(check_written(*bytes->next(), a, p, *bytes, kSumText));
  bytes->keep(kSum);
  return {};
}

Status check_attention_memory(const Attention& a, const AttentionSizes& p, const AttentionBytes& bytes,
                              const ByteSet& workspace, const ByteSet& partial) {
  static constexpr OverlapText kWorkspace = SIMDATTN_OVERLAP_TEXT("exec.workspace");
  static constexpr OverlapText kPartial = SIMDATTN_OVERLAP_TEXT("partial");
  SIMDATTN_REQUIRE(!share_bytes(workspace, partial), Code::kOverlap, "exec.workspace: overlaps partial");
  SIMDATTN_CHECK(check_written(workspace, a, p, bytes, kWorkspace));
  return check_written(partial, a, p, bytes, kPartial);
}

namespace {

template <int kRank, bool kConst>
bool same_view(const BasicView<kRank, kConst>& a, const BasicView<kRank, kConst>& b) {
  return a.dtype == b.dtype && same_numbers(a.shape, b.shape) && same_numbers(a.stride, b.stride);
}
bool same_kv(const ConstKv& a, const ConstKv& b) {
  return a.type == b.type && a.layout == b.layout && a.batch == b.batch && a.heads == b.heads && a.tokens == b.tokens &&
         a.length == b.length && a.dim == b.dim && a.batch_stride == b.batch_stride && a.head_stride == b.head_stride &&
         a.token_stride == b.token_stride && a.scale_batch_stride == b.scale_batch_stride &&
         a.scale_head_stride == b.scale_head_stride && a.scale_token_stride == b.scale_token_stride &&
         a.block_table_stride == b.block_table_stride && a.page_size == b.page_size && a.n_pages == b.n_pages &&
         a.ring == b.ring;
}
bool same_presence(const void* a, const void* b) { return (a == nullptr) == (b == nullptr); }
bool same_scale(const Scoring& s, const Scoring& t) {
  return s.scale.given == t.scale.given && (!s.scale || s.scale.value == t.scale.value);
}

}  // namespace

const char* problem_difference(const Attention& a, const Attention& b) {
  const Scoring& s = a.scoring;
  const Scoring& t = b.scoring;
#define SIMDATTN_ARRAY_OF_THE_PLAN ": type, shape and strides must be those of the plan"
#define SIMDATTN_STORE_OF_THE_PLAN ": type, layout, sizes, strides and those of its scales must be those of the plan"
#define SIMDATTN_NUMBER_OF_THE_PLAN ": must be that of the plan"
#define SIMDATTN_PRESENCE_OF_THE_PLAN ": must be given where it was for the plan, and only there"
  if (!same_view(a.q, b.q)) return "q" SIMDATTN_ARRAY_OF_THE_PLAN;
  if (!same_kv(a.k, b.k)) return "k" SIMDATTN_STORE_OF_THE_PLAN;
  if (!same_kv(a.v, b.v)) return "v" SIMDATTN_STORE_OF_THE_PLAN;
  if (a.arithmetic != b.arithmetic) return "arithmetic" SIMDATTN_NUMBER_OF_THE_PLAN;
  if (a.n_sequences != b.n_sequences) return "n_sequences" SIMDATTN_NUMBER_OF_THE_PLAN;
  if (!same_presence(a.cu_q, b.cu_q)) return "cu_q" SIMDATTN_PRESENCE_OF_THE_PLAN;
  if (!same_presence(a.cu_k, b.cu_k)) return "cu_k" SIMDATTN_PRESENCE_OF_THE_PLAN;
  if (!same_scale(s, t)) return "scoring.scale" SIMDATTN_NUMBER_OF_THE_PLAN;
  if (s.softcap != t.softcap) return "scoring.softcap" SIMDATTN_NUMBER_OF_THE_PLAN;
  if (s.causal != t.causal) return "scoring.causal" SIMDATTN_NUMBER_OF_THE_PLAN;
  if (s.offset != t.offset) return "scoring.offset" SIMDATTN_NUMBER_OF_THE_PLAN;
  if (s.window_left != t.window_left) return "scoring.window_left" SIMDATTN_NUMBER_OF_THE_PLAN;
  if (s.window_right != t.window_right) return "scoring.window_right" SIMDATTN_NUMBER_OF_THE_PLAN;
  if (s.chunk != t.chunk) return "scoring.chunk" SIMDATTN_NUMBER_OF_THE_PLAN;
  if (!same_presence(s.offsets, t.offsets)) return "scoring.offsets" SIMDATTN_PRESENCE_OF_THE_PLAN;
  if (!same_presence(s.prefix_end, t.prefix_end)) return "scoring.prefix_end" SIMDATTN_PRESENCE_OF_THE_PLAN;
  if (!same_presence(s.kv_start, t.kv_start)) return "scoring.kv_start" SIMDATTN_PRESENCE_OF_THE_PLAN;
  if (!same_presence(s.kv_length, t.kv_length)) return "scoring.kv_length" SIMDATTN_PRESENCE_OF_THE_PLAN;
  if (!same_view(s.bias, t.bias)) return "scoring.bias" SIMDATTN_ARRAY_OF_THE_PLAN;
  if (!same_view(s.keep, t.keep)) return "scoring.keep" SIMDATTN_ARRAY_OF_THE_PLAN;
  if (s.bits.columns != t.bits.columns) return "scoring.bits.columns" SIMDATTN_NUMBER_OF_THE_PLAN;
  if (!same_numbers(s.bits.stride, t.bits.stride)) return "scoring.bits.stride" SIMDATTN_NUMBER_OF_THE_PLAN;
  return nullptr;
}

Status check_attention_workspace(const Exec& exec, size_t needed) {
  SIMDATTN_REQUIRE(exec.workspace != nullptr, Code::kWorkspace,
                   "exec.workspace: null; see AttentionPlan::workspace_bytes");
  SIMDATTN_REQUIRE(exec.workspace_bytes >= needed, Code::kWorkspace,
                   "exec.workspace_bytes: less than AttentionPlan::workspace_bytes");
  return {};
}

Status check_task_count(bool too_many) {
  SIMDATTN_REQUIRE(!too_many, Code::kShape, "q.shape: rows and heads of all sequences are more than 2^63 tasks");
  return {};
}

Status check_partial_bytes(bool split, size_t bytes) {
  SIMDATTN_REQUIRE(!split || bytes > 0, Code::kShape, "v.dim: the partial states of all splits are too large");
  return {};
}

Status check_plan_size(const AttentionPlan& plan) {
  SIMDATTN_REQUIRE(plan.struct_size == sizeof(AttentionPlan), Code::kStructSize,
                   "plan.struct_size: not that of this version");
  return {};
}

Status check_bound_problem(const Attention& a, const Attention* planned) {
  SIMDATTN_REQUIRE(planned != nullptr, Code::kStalePlan, "plan: not made by attention_plan");
  const char* const different = problem_difference(a, *planned);
  SIMDATTN_REQUIRE(different == nullptr, Code::kStalePlan, different);
  return {};
}

Status check_bound_data(bool there) {
  SIMDATTN_REQUIRE(there, Code::kNullPointer, "problem: arrays are still null");
  return {};
}

Status check_planned_size(const AttentionPlan& plan) {
  SIMDATTN_REQUIRE(plan.struct_size == sizeof(AttentionPlan), Code::kStructSize,
                   "plan.struct_size: not made by this version");
  return {};
}

Status check_task_range(const AttentionPlan& plan, const PlannedTasks* planned, int64_t first, int64_t last,
                        bool reduce, const void* partial, size_t partial_size, const Exec& exec) {
  SIMDATTN_REQUIRE(planned != nullptr, Code::kStalePlan, "plan: not made by attention_plan");
  SIMDATTN_REQUIRE(exec.target == nullptr || exec.target == planned->target, Code::kTarget,
                   "exec.target: not the one that the plan was made for");
  SIMDATTN_REQUIRE(planned->has_data || planned->tasks == 0, Code::kNullPointer,
                   "plan: made without data; attention_bind gives it the arrays");
  SIMDATTN_REQUIRE(
      first >= 0 && first <= last && last <= (reduce ? planned->reduce_tasks : planned->tasks), Code::kRange,
      reduce ? "first, last: must be within 0 .. plan.reduce_tasks" : "first, last: must be within 0 .. plan.tasks");
  if (planned->tasks > 0) SIMDATTN_CHECK(check_attention_workspace(exec, plan.workspace_bytes));
  if (planned->split) {
    SIMDATTN_REQUIRE(partial != nullptr, Code::kNullPointer, "partial: null although plan.partial_bytes is not 0");
    SIMDATTN_REQUIRE(partial_size >= plan.partial_bytes, Code::kWorkspace,
                     "partial_bytes: less than plan.partial_bytes");
  }
  return {};
}

Status check_planned_lengths(bool same) {
  SIMDATTN_REQUIRE(same, Code::kStalePlan,
                   "plan: cu_q, cu_k, kv_length, kv_start, prefix_end or offsets are not those that it was made from");
  return {};
}

}  // namespace simdattn
