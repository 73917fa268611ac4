// Of fused attention: whole, planned, in ranges, bound to other arrays.
#include "tests/rules/bad_calls.h"

namespace simdattn::test {
namespace {

struct AttentionCall : BadCall {
  Random random{8};
  std::unique_ptr<ScoringArrays> arrays = std::make_unique<ScoringArrays>();
  Array<4> q_memory{random, DType::kF32, {2, 4, 3, 16}}, out_memory{random, DType::kF32, {2, 4, 3, 8}},
      acc_memory{random, DType::kF32, {2, 4, 3, 8}};
  Array<3> lse_memory{random, DType::kF32, {2, 4, 3}}, max_memory{random, DType::kF32, {2, 4, 3}},
      sum_memory{random, DType::kF32, {2, 4, 3}};
  Array<4> k_memory{random, DType::kBF16, {2, 2, 20, 16}}, k32_memory{random, DType::kF32, {2, 2, 20, 16}},
      v_memory{random, DType::kF16, {2, 2, 20, 8}};
  Array<4> packed_q{random, DType::kF32, {1, 4, 6, 16}}, packed_out{random, DType::kF32, {1, 4, 6, 8}},
      packed_k{random, DType::kF32, {1, 2, 30, 16}}, packed_v{random, DType::kF32, {1, 2, 30, 8}};
  KvStorage paged_k = make_kv(random, DType::kF32, KvForm::kPagedPanels, 2, 2, 20, 16),
            paged_v = make_kv(random, DType::kF32, KvForm::kPagedRows, 2, 2, 20, 8);
  KvStorage panels = make_kv(random, DType::kF32, KvForm::kPanels, 2, 2, 20, 16),
            value_panels = make_kv(random, DType::kF32, KvForm::kPanels, 2, 2, 20, 8);
  std::vector<int32_t> entries = std::vector<int32_t>(2 * 2 * 3 * 5, -1);
  int32_t cu_q[3] = {0, 2, 6}, cu_k[3] = {0, 10, 30};
  AttentionProblem a;
  Scoring& s = a.scoring;
  Guarded workspace, partial_memory{1 << 16, Guard::kAfter};
  AttentionCall() {
    a.q = q_memory.view;
    a.k = k_memory.view;
    a.v = v_memory.view;
    a.out = out_memory.view;
    a.lse = lse_memory.view;
    a.acc = acc_memory.view;
    a.max = max_memory.view;
    a.sum = sum_memory.view;
    a.scoring = arrays->all();
    for (size_t i = 0; i < entries.size(); ++i) entries[i] = static_cast<int32_t>(i % 5 * 2);
    a.lists = {entries.data(), 2, 5, 2, {30, 15, 5}};
    workspace = Guarded(attention_workspace(a), Guard::kAfter);
    exec.workspace = workspace.data();
    exec.workspace_bytes = workspace.size();
  }
  AttentionCall(const AttentionCall&) = delete;
  AttentionCall& operator=(const AttentionCall&) = delete;
  /// A mixed batch of sequences.
  void varlen() {
    a.q = packed_q.view;
    a.out = packed_out.view;
    a.k = packed_k.view;
    a.v = packed_v.view;
    a.lse = {};
    a.acc = {};
    a.max = a.sum = {};
    a.scoring = {};
    a.lists = {};
    a.cu_q = cu_q;
    a.cu_k = cu_k;
    a.n_sequences = 2;
  }
  Status call() const override { return attention(a, exec); }
  std::vector<const Guarded*> outputs() const override {
    return {&out_memory.memory, &lse_memory.memory, &acc_memory.memory, &max_memory.memory,
            &sum_memory.memory, &packed_out.memory, &workspace};
  }
};

std::vector<Bad<AttentionCall>> attention_rows() {
  using C = AttentionCall;
  std::vector<Bad<C>> table = scoring_rows<C>();
  const std::vector<Bad<C>> own = {
      {"too many dimensions for kInt8", kShape, "q.shape[3]: kInt8",
       [](C& c) { c.a.arithmetic = Arithmetic::kInt8, c.a.q.shape[3] = c.a.k.dim = 131073; }},
      {"cu_q forgotten", kNullPointer, "cu_q: null", [](C& c) { c.a.n_sequences = c.a.k.batch = 3; }},
      {"lists null", kNullPointer, "lists.data", [](C& c) { c.a.lists.data = nullptr; }},
      {"lists of no heads", kShape, "lists.heads", [](C& c) { c.a.lists.heads = 0; }},
      {"lists of three heads", kShape, "lists.heads", [](C& c) { c.a.lists.heads = 3; }},
      {"lists of negative length", kShape, "lists.length", [](C& c) { c.a.lists.length = -1; }},
      {"lists that are too long", kShape, "lists.length", [](C& c) { c.a.lists.length = kHuge; }},
      {"lists of blocks of no keys", kRange, "lists.block_size", [](C& c) { c.a.lists.block_size = 0; }},
      {"lists of sequences too far apart", kStride, "lists.stride", [](C& c) { c.a.lists.stride[0] = INT64_MAX; }},
      {"lists of heads too far apart", kStride, "lists.stride", [](C& c) { c.a.lists.stride[1] = INT64_MAX; }},
      {"lists of rows too far apart", kStride, "lists.stride", [](C& c) { c.a.lists.stride[2] = INT64_MAX; }},
      {"an entry below -1", kRange, "lists: an entry is", [](C& c) { c.entries[7] = -2; }},
      {"an entry past the keys", kRange, "lists: an entry is", [](C& c) { c.entries[59] = 10; }},
      {"equal neighbours", kRange, "lists: an entry comes", [](C& c) { c.entries[8] = c.entries[7]; }},
      {"equal neighbours around -1", kRange, "lists: an entry comes",
       [](C& c) {
         c.entries[7] = -1;
         c.entries[8] = c.entries[6];
       }},
      {"out over the lists", kOverlap, "out",
       [](C& c) {
         c.a.lists.data = static_cast<const int32_t*>(c.a.out.data);
         c.a.lists.stride = {0, 0, 0};
       }},
      {"q null", kNullPointer, "q", [](C& c) { c.a.q.data = nullptr; }},
      {"k null", kNullPointer, "k", [](C& c) { c.a.k.data = nullptr; }},
      {"v null", kNullPointer, "v", [](C& c) { c.a.v.data = nullptr; }},
      {"q of integers", kDType, "q", [](C& c) { c.a.q.dtype = DType::kI64; }},
      {"k of a type that does not exist", kDType, "k.type", [](C& c) { c.a.k.type = static_cast<KvType>(77); }},
      {"v of a type that does not exist", kDType, "v.type", [](C& c) { c.a.v.type = static_cast<KvType>(-1); }},
      {"k of bytes", kDType, "k.type",
       [](C& c) {
         ConstView<4> k = c.k_memory.view;
         k.dtype = DType::kU8;
         c.a.k = k;
       }},
      {"out of integers", kDType, "out", [](C& c) { c.a.out.dtype = DType::kI32; }},
      {"lse in bf16", kDType, "lse", [](C& c) { c.a.lse.dtype = DType::kBF16; }},
      {"acc in bf16", kDType, "acc", [](C& c) { c.a.acc.dtype = DType::kBF16; }},
      {"d_qk = 0", kShape, "q.shape[3]", [](C& c) { c.a.q.shape[3] = 0; }},
      {"d_qk = 0 in k", kShape, "k.dim", [](C& c) { c.a.k.dim = 0; }},
      {"d_v = 0", kShape, "v.dim", [](C& c) { c.a.v.dim = c.a.out.shape[3] = 0; }},
      {"k not contiguous", kShape, "k.dim",
       [](C& c) {
         View<4> k = c.k_memory.view;
         k.stride[3] = 2;
         c.a.k = k;
       }},
      {"dimensions differ", kShape, "k.dim", [](C& c) { c.a.k.dim = 15; }},
      {"Hk = 0", kShape, "k.heads", [](C& c) { c.a.k.heads = c.a.v.heads = 0; }},
      {"value heads differ", kShape, "v.heads", [](C& c) { c.a.v.heads = 1; }},
      {"heads not a multiple", kShape, "q.shape[1]", [](C& c) { c.a.q.shape[1] = 3; }},
      {"fewer values than keys", kShape, "v", [](C& c) { c.a.v.capacity = 19; }},
      {"values of other length", kShape, "v.length", [](C& c) { c.a.v.length = 19; }},
      {"length beyond the tokens", kShape, "k.length", [](C& c) { c.a.k.length = c.a.v.length = 21; }},
      {"length negative", kShape, "k.length", [](C& c) { c.a.k.length = c.a.v.length = -2; }},
      {"key batch differs", kShape, "k.batch", [](C& c) { c.a.k.batch = 1; }},
      {"value batch differs", kShape, "v.batch", [](C& c) { c.a.v.batch = 1; }},
      {"tokens negative", kShape, "k.capacity", [](C& c) { c.a.k.capacity = c.a.v.capacity = -1; }},
      {"huge", kShape, "k.capacity", [](C& c) { c.a.k.capacity = c.a.v.capacity = kHuge; }},
      {"one token more than all sizes", kShape, "k.capacity",
       [](C& c) { c.a.k.capacity = c.a.v.capacity = int64_t{1} << 30, c.a.k.length = c.a.v.length = 20; }},
      {"one key head more than all sizes", kShape, "k.heads", [](C& c) { c.a.k.heads = int64_t{1} << 30; }},
      {"one sequence of keys more than all sizes", kShape, "k.batch: must be in",
       [](C& c) { c.a.k.batch = int64_t{1} << 30; }},
      {"one dimension of values more than all sizes", kShape, "v.dim",
       [](C& c) { c.a.v.dim = int64_t{1} << 30, c.a.out = {}, c.a.acc = {}, c.a.max = c.a.sum = {}; }},
      {"values in panels", kShape, "v.layout", [](C& c) { c.a.v = c.value_panels.kv; }},
      {"k layout that does not exist", kShape, "k.layout", [](C& c) { c.a.k.layout = static_cast<KvLayout>(3); }},
      {"out of other shape", kShape, "out.shape", [](C& c) { c.a.out.shape[2] = 2; }},
      {"out of other dimension", kShape, "out.shape", [](C& c) { c.a.out.shape[3] = 7; }},
      {"lse of other shape", kShape, "lse.shape", [](C& c) { c.a.lse.shape[2] = 2; }},
      {"acc of other shape", kShape, "acc.shape", [](C& c) { c.a.acc.shape[3] = 7; }},
      {"max of other shape", kShape, "max.shape", [](C& c) { c.a.max.shape[0] = 1; }},
      {"sum of other shape", kShape, "sum.shape", [](C& c) { c.a.sum.shape[1] = 2; }},
      {"the raw state without sum", kNullPointer, "acc, max, sum", [](C& c) { c.a.sum = {}; }},
      {"the raw state without max", kNullPointer, "acc, max, sum", [](C& c) { c.a.max = {}; }},
      {"the raw state without acc", kNullPointer, "acc, max, sum", [](C& c) { c.a.acc = {}; }},
      {"acc alone", kNullPointer, "acc, max, sum", [](C& c) { c.a.max = c.a.sum = {}; }},
      {"max alone", kNullPointer, "acc, max, sum", [](C& c) { c.a.acc = {}, c.a.sum = {}; }},
      {"sum alone", kNullPointer, "acc, max, sum", [](C& c) { c.a.acc = {}, c.a.max = {}; }},
      {"no output at all", kNullPointer, "out",
       [](C& c) { c.a.out.data = nullptr, c.a.lse = {}, c.a.acc = {}, c.a.max = c.a.sum = {}; }},
      {"q not contiguous", kStride, "q", [](C& c) { c.a.q.stride[3] = 2; }},
      {"k stride overflows", kStride, "k", [](C& c) { c.a.k.token_stride = std::numeric_limits<int64_t>::max(); }},
      {"k stride between elements", kStride, "k", [](C& c) { c.a.k.token_stride += 1; }},
      {"v stride between elements", kStride, "v", [](C& c) { c.a.v.head_stride += 1; }},
      {"stride of f32 keys between elements", kStride, "k",
       [](C& c) { c.a.k = c.k32_memory.view, c.a.k.head_stride += 2; }},
      {"all k strides between elements", kStride, "k",
       [](C& c) { c.a.k.token_stride += 1, c.a.k.head_stride += 1, c.a.k.batch_stride += 1; }},
      {"reserved member 0 of keys", kStructSize, "k.reserved", [](C& c) { c.a.k.reserved[0] = 1; }},
      {"reserved member 1 of keys", kStructSize, "k.reserved", [](C& c) { c.a.k.reserved[1] = 1; }},
      {"reserved member 2 of keys", kStructSize, "k.reserved", [](C& c) { c.a.k.reserved[2] = 1; }},
      {"reserved member 3 of keys", kStructSize, "k.reserved", [](C& c) { c.a.k.reserved[3] = 1; }},
      {"scales of keys that have none", kDType, "k.scales", [](C& c) { c.a.k.scales = c.a.v.data; }},
      {"block table of keys that have no pages", kRange, "k.block_table",
       [](C& c) { c.a.k.block_table = c.paged_k.kv.block_table; }},
      {"block table stride below -1", kShape, "k.block_table_stride", [](C& c) { c.a.k.block_table_stride = -2; }},
      {"out broadcast", kStride, "out", [](C& c) { c.a.out.stride[0] = 0; }},
      {"rows of lse coincide", kStride, "lse", [](C& c) { c.a.lse.stride[1] = 1; }},
      {"out in q", kOverlap, "out", [](C& c) { c.a.q.data = c.a.out.data, c.a.q.stride = {0, 0, 0, 1}; }},
      {"out in k", kOverlap, "out", [](C& c) { c.a.k.data = c.a.out.data; }},
      {"out in v", kOverlap, "out", [](C& c) { c.a.v.data = c.a.out.data; }},
      {"lse in out", kOverlap, "", [](C& c) { c.a.lse.data = c.a.out.data; }},
      {"acc is out", kOverlap, "", [](C& c) { c.a.acc = c.a.out; }},
      {"max is sum", kOverlap, "", [](C& c) { c.a.max = c.a.sum; }},
      {"out in the sinks", kOverlap, "out", [](C& c) { c.s.sinks = static_cast<float*>(c.a.out.data); }},
      {"ring and cut panels", kRange, "k.ring", [](C& c) { c.a.k = c.panels.kv, c.a.k.ring = 20; }},
      {"ring and pages", kRange, "k", [](C& c) { c.a.k = c.paged_k.kv, c.a.k.ring = 32; }},
      {"page that cuts panels", kShape, "k.page_size", [](C& c) { c.a.k = c.paged_k.kv, c.a.k.page_size = 20; }},
      {"page size negative", kShape, "v.page_size", [](C& c) { c.a.v = c.paged_v.kv, c.a.v.page_size = -1; }},
      {"pages without a table", kNullPointer, "v.block_table",
       [](C& c) { c.a.v = c.paged_v.kv, c.a.v.block_table = nullptr; }},
      {"arithmetic that does not exist", kRange, "arithmetic",
       [](C& c) { c.a.arithmetic = static_cast<Arithmetic>(99); }},
      {"arithmetic past the last", kRange, "arithmetic", [](C& c) { c.a.arithmetic = static_cast<Arithmetic>(3); }},
      {"negative arithmetic", kRange, "arithmetic", [](C& c) { c.a.arithmetic = static_cast<Arithmetic>(-1); }},
      {"problem that was only cleared", kStructSize, "problem", [](C& c) { c.a.struct_size = 0; }},
      {"k that was only cleared", kStructSize, "k", [](C& c) { c.a.k.struct_size = 0; }},
      {"reserved numbers in v", kStructSize, "v", [](C& c) { c.a.v.reserved[3] = 1; }},
      {"missing page", kRange, "k.block_table",
       [](C& c) { c.s = {}, c.a.k = c.paged_k.kv, c.paged_k.table.data()[0] = -1; }},
      {"page past the pool", kRange, "v.block_table",
       [](C& c) { c.s = {}, c.a.v = c.paged_v.kv, c.paged_v.table.data()[0] = static_cast<int32_t>(c.a.v.n_pages); }},
      {"page of one token past the pool", kRange, "v.block_table",
       [](C& c) {
         c.s = {}, c.a.lists = {}, c.a.v = c.paged_v.kv, c.a.v.page_size = 1, c.a.v.block_table_stride = 20;
         c.entries.assign(2 * 20, 0), c.entries.back() = static_cast<int32_t>(c.a.v.n_pages);
         c.a.v.block_table = c.entries.data();
       }},
      {"cu_k without cu_q", kNullPointer, "cu_q", [](C& c) { c.varlen(), c.a.cu_q = nullptr; }},
      {"cu_q does not begin at 0", kRange, "cu_q", [](C& c) { c.varlen(), c.cu_q[0] = 1; }},
      {"cu_q decreases", kRange, "cu_q", [](C& c) { c.varlen(), c.cu_q[1] = 7; }},
      {"cu_q ends elsewhere", kShape, "cu_q", [](C& c) { c.varlen(), c.cu_q[2] = 5; }},
      {"cu_k does not begin at 0", kRange, "cu_k", [](C& c) { c.varlen(), c.cu_k[0] = -1; }},
      {"cu_k decreases", kRange, "cu_k", [](C& c) { c.varlen(), c.cu_k[1] = 31; }},
      {"cu_k ends elsewhere", kShape, "cu_k", [](C& c) { c.varlen(), c.cu_k[2] = 29; }},
      {"batched varlen q", kShape, "q.shape[0]", [](C& c) { c.varlen(), c.a.q.shape[0] = 2; }},
      {"batched varlen k", kShape, "k.batch", [](C& c) { c.varlen(), c.a.k.batch = 2; }},
      {"sequences negative", kRange, "n_sequences", [](C& c) { c.varlen(), c.a.n_sequences = -1; }},
      {"varlen bias of one sequence", kShape, "scoring.bias", [](C& c) { c.varlen(), c.s.bias = c.arrays->bias.view; }},
      {"length beyond a varlen sequence", kRange, "scoring.kv_length",
       [](C& c) { c.varlen(), c.arrays->numbers[0] = 11, c.s.kv_length = c.arrays->numbers; }},
  };
  table.insert(table.end(), own.begin(), own.end());
  return table;
}

TEST_P(BadCalls, Attention) {
  using C = AttentionCall;
  std::vector<Bad<C>> table = attention_rows();
  table.push_back({"workspace null", kWorkspace, "exec.workspace", [](C& c) { c.exec.workspace = nullptr; }});
  table.push_back(
      {"workspace one byte short", kWorkspace, "exec.workspace_bytes", [](C& c) { --c.exec.workspace_bytes; }});
  check<C>("attention", table);
}

struct PlanCall : AttentionCall {
  mutable Plan plan;
  Plan* pointer = &plan;
  PlanCall() {
    plan.tasks = plan.reduce_tasks = -1;
    plan.workspace_bytes = plan.partial_bytes = 99;
  }
  Status call() const override {
    const Status status = attention_plan(a, pointer, exec);
    // On failure the struct is an output like others.
    if (!status.ok()) {
      EXPECT_EQ(plan.tasks, -1);
      EXPECT_EQ(plan.workspace_bytes, 99u);
    }
    return status;
  }
};

TEST_P(BadCalls, Plan) {
  using C = PlanCall;
  std::vector<Bad<AttentionCall>> table;
  for (const Bad<AttentionCall>& bad : attention_rows()) {
    // Arrays need not be there yet when the work is divided, and ranges look at pages and lists.
    const std::string what = bad.what;
    if (what == "lists null" || what.rfind("an entry", 0) == 0 || what.rfind("equal neighbours", 0) == 0) continue;
    if (what == "q null" || what == "k null" || what == "v null" || what == "no output at all") continue;
    if (what == "pages without a table" || what == "missing page" || what.find("past the pool") != what.npos) continue;
    if (what == "mask columns without a mask") continue;
    table.push_back(bad);
  }
  check<C>("attention_plan", table);
  const std::vector<Bad<C>> own = {
      {"plan null", kNullPointer, "plan", [](C& c) { c.pointer = nullptr; }},
      {"plan that was only cleared", kStructSize, "plan", [](C& c) { c.plan.struct_size = 0; }},
  };
  check<C>("attention_plan", own);
}

/// Long keys, so that there is something to reduce.
struct RangeCall : BadCall {
  Random random{9};
  Array<4> q_memory{random, DType::kF32, {1, 2, 1, 8}}, out_memory{random, DType::kF32, {1, 2, 1, 8}},
      k_memory{random, DType::kF32, {1, 1, 3000, 8}};
  int32_t length;
  AttentionProblem a;
  Plan plan;
  Guarded workspace, partial_memory;
  void* partial = nullptr;
  size_t partial_bytes = 0;
  int64_t first = 0, last = 1;
  explicit RangeCall(int32_t keys = 3000) : length(keys) {
    k_memory.fill(random, Values::kOrdinary);
    q_memory.fill(random, Values::kOrdinary);
    a.q = q_memory.view;
    a.k = k_memory.view;
    a.v = k_memory.view;
    a.out = out_memory.view;
    a.scoring.kv_length = &length;
    make_plan(nullptr);
    EXPECT_EQ(plan.reduce_tasks > 0, keys > kKeySplit);
    workspace = Guarded(plan.workspace_bytes, Guard::kAfter);
    partial_memory = Guarded(plan.partial_bytes, Guard::kAfter);
    exec.workspace = workspace.data();
    exec.workspace_bytes = workspace.size();
    partial = partial_memory.data();
    partial_bytes = partial_memory.size();
  }
  RangeCall(const RangeCall&) = delete;
  RangeCall& operator=(const RangeCall&) = delete;
  void prepare(const Target* t) override { make_plan(t); }
  void make_plan(const Target* t) {
    exec.target = t;
    EXPECT_TRUE(ok(attention_plan(a, &plan, exec)));
  }
  Status call() const override { return attention_range(plan, first, last, partial, partial_bytes, exec); }
  std::vector<const Guarded*> outputs() const override { return {&out_memory.memory, &partial_memory, &workspace}; }
};
struct ReduceCall : RangeCall {
  void prepare(const Target* t) override {
    make_plan(t);
    std::memset(partial_memory.data(), 0, partial_memory.size());
  }
  Status call() const override { return attention_reduce(plan, first, last, partial, partial_bytes, exec); }
};

template <class C>
std::vector<Bad<C>> range_rows() {
  return {
      {"plan without data", kNullPointer, "", [](C& c) { c.a.q.data = nullptr, c.make_plan(c.exec.target); }},
      {"plan without an output", kNullPointer, "", [](C& c) { c.a.out.data = nullptr, c.make_plan(c.exec.target); }},
      {"plan that was only cleared", kStructSize, "plan", [](C& c) { c.plan.struct_size = 0; }},
      {"plan of another length", kStalePlan, "", [](C& c) { c.length = 2500; }},
      {"first negative", kRange, "first", [](C& c) { c.first = -1; }},
      {"last before first", kRange, "first, last", [](C& c) { c.first = 1, c.last = 0; }},
      {"last past the tasks", kRange, "first, last", [](C& c) { c.last = 1000; }},
      {"workspace null", kWorkspace, "exec.workspace", [](C& c) { c.exec.workspace = nullptr; }},
      {"workspace one byte short", kWorkspace, "exec.workspace_bytes", [](C& c) { --c.exec.workspace_bytes; }},
      {"partial null", kNullPointer, "partial", [](C& c) { c.partial = nullptr; }},
      {"partial one byte short", kWorkspace, "partial_bytes", [](C& c) { --c.partial_bytes; }},
  };
}

/// Nothing to reduce.
struct OneTaskCall : RangeCall {
  OneTaskCall() : RangeCall(5) { EXPECT_EQ(plan.tasks, 1); }
};

TEST_P(BadCalls, AttentionRangeOfOneTask) {
  using C = OneTaskCall;
  const std::vector<Bad<C>> table = {
      {"plan without data", kNullPointer, "plan", [](C& c) { c.a.q.data = nullptr, c.make_plan(c.exec.target); }},
      {"plan of another length", kStalePlan, "plan", [](C& c) { c.length = 6; }},
      {"last past the task", kRange, "first, last", [](C& c) { c.last = 2; }},
      {"workspace null", kWorkspace, "exec.workspace", [](C& c) { c.exec.workspace = nullptr; }},
      {"workspace one byte short", kWorkspace, "exec.workspace_bytes", [](C& c) { --c.exec.workspace_bytes; }},
  };
  check<C>("attention_range of one task", table);
}
TEST_P(BadCalls, AttentionRange) { check<RangeCall>("attention_range", range_rows<RangeCall>()); }
TEST_P(BadCalls, AttentionReduce) { check<ReduceCall>("attention_reduce", range_rows<ReduceCall>()); }

/// The arrays of another layer.
struct BindCall : RangeCall {
  Array<4> next_k{random, DType::kF32, {1, 1, 3000, 8}}, next_out{random, DType::kF32, {1, 2, 1, 8}};
  mutable Plan bound;
  Plan* pointer = &bound;
  BindCall() { next_k.fill(random, Values::kOrdinary); }
  void prepare(const Target* t) override {
    make_plan(t);
    a.k = next_k.view;
    a.v = next_k.view;
    a.out = next_out.view;
  }
  Status call() const override {
    bound = plan;
    const Status status = attention_bind(a, pointer);
    if (status.ok()) return attention_range(bound, first, last, partial, partial_bytes, exec);
    EXPECT_EQ(std::memcmp(&bound, &plan, sizeof plan), 0) << "the plan was written";
    return status;
  }
  std::vector<const Guarded*> outputs() const override { return {&out_memory.memory, &next_out.memory}; }
};

TEST_P(BadCalls, AttentionBind) {
  using C = BindCall;
  const std::vector<Bad<C>> table = {
      {"plan null", kNullPointer, "plan", [](C& c) { c.pointer = nullptr; }},
      {"q null", kNullPointer, "q", [](C& c) { c.a.q.data = nullptr; }},
      {"out in k", kOverlap, "out", [](C& c) { c.a.k.data = c.a.out.data; }},
      {"other rows", kStalePlan, "q:", [](C& c) { c.a.q.shape[1] = c.a.out.shape[1] = 1; }},
      {"other stride", kStalePlan, "k:", [](C& c) { c.a.k.token_stride = 0; }},
      {"other type", kStalePlan, "k:", [](C& c) { c.a.k.type = KvType::kBF16; }},
      {"other capacity", kStalePlan, "v:", [](C& c) { c.a.v.length = 3000; }},
      {"other scales", kStalePlan, "v:", [](C& c) { c.a.v.scale_token_stride = 4; }},
      {"other arithmetic", kStalePlan, "arithmetic:", [](C& c) { c.a.arithmetic = Arithmetic::kInt8; }},
      {"other sequences", kStalePlan, "n_sequences:", [](C& c) { c.a.n_sequences = 1; }},
      {"with cu_q", kStalePlan, "cu_q:", [](C& c) { c.a.cu_q = &c.length; }},
      {"with cu_k", kStalePlan, "cu_k:", [](C& c) { c.a.cu_k = &c.length; }},
      {"other scale", kStalePlan, "scoring.scale:", [](C& c) { c.a.scoring.scale = 3.0f; }},
      {"other softcap", kStalePlan, "scoring.softcap:", [](C& c) { c.a.scoring.softcap = 3.0f; }},
      {"causal", kStalePlan, "scoring.causal:", [](C& c) { c.a.scoring.causal = true; }},
      {"other offset", kStalePlan, "scoring.offset:", [](C& c) { c.a.scoring.offset = 3; }},
      {"window", kStalePlan, "scoring.window_left:", [](C& c) { c.a.scoring.window_left = 3; }},
      {"window", kStalePlan, "scoring.window_right:", [](C& c) { c.a.scoring.window_right = 3; }},
      {"chunk", kStalePlan, "scoring.chunk:", [](C& c) { c.a.scoring.chunk = 3; }},
      {"offsets", kStalePlan, "scoring.offsets:", [](C& c) { c.a.scoring.offsets = &c.length; }},
      {"prefix", kStalePlan, "scoring.prefix_end:", [](C& c) { c.a.scoring.prefix_end = &c.length; }},
      {"start", kStalePlan, "scoring.kv_start:", [](C& c) { c.a.scoring.kv_start = &c.length; }},
      {"no lengths", kStalePlan, "scoring.kv_length:", [](C& c) { c.a.scoring.kv_length = nullptr; }},
      {"lists of one head", kStalePlan, "lists.heads:",
       [](C& c) {
         static const int32_t entry = 0;
         c.a.lists = {&entry, 1, 1, 1, {0, 0, 0}};
       }},
      {"bias", kStalePlan, "scoring.bias:", [](C& c) { c.a.scoring.bias = c.a.q; }},
      {"keep", kStalePlan, "scoring.mask:", [](C& c) { c.a.scoring.mask = c.a.q; }},
      {"bits", kStalePlan, "scoring.packed_mask.columns:", [](C& c) { c.a.scoring.packed_mask.columns = 3; }},
      {"bits", kStalePlan, "scoring.packed_mask.stride:", [](C& c) { c.a.scoring.packed_mask.stride[0] = 3; }},
      {"other length", kStalePlan, "", [](C& c) { c.length = 2500; }},
      {"problem that was only cleared", kStructSize, "problem", [](C& c) { c.a.struct_size = 0; }},
      {"plan that was only cleared", kStructSize, "plan", [](C& c) { c.plan.struct_size = 0; }},
  };
  check<C>("attention_bind", table);
}

}  // namespace
}  // namespace simdattn::test
