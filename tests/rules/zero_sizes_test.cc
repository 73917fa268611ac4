// Sizes of 0 of stores, attention, selection and states (zero_sizes.h).
#include <string>
#include <vector>

#include "tests/rules/zero_sizes.h"

namespace simdattn::test {
namespace {

TEST_P(ZeroSizes, Stores) {
  for (const KvType type : {KvType::kF32, KvType::kBF16, KvType::kInt8, KvType::kQ8_0}) {
    for (const KvForm form : {KvForm::kRows, KvForm::kPanels, KvForm::kPagedRows, KvForm::kRingRows}) {
      KvStorage s = make_kv(random_, type, form, 2, 3, 40, 32, 32);
      std::memset(s.memory.data(), 0, s.memory.size());
      Array<4> rows(random_, DType::kF32, {2, 3, 4, 32}, Values::kOrdinary), read(random_, DType::kF32, {2, 3, 4, 32});
      int64_t moved = 4;
      const auto sizes = [&](Array<4>& array) -> std::vector<Size> {
        return {{"batch", true, {&array.view.shape[0], &s.kv.batch}},
                {"heads", true, {&array.view.shape[1], &s.kv.heads}},
                {"rows", true, {&array.view.shape[2]}},
                {"dimension", false, {&array.view.shape[3], &s.kv.dim}},
                {"tokens", true, {&s.kv.capacity}},
                {"pages", true, {&s.kv.n_pages}}};
      };
      const auto fits = [&](const Array<4>& array) {
        const auto& n = array.view.shape;
        const bool in_pages = s.kv.page_size == 0 || s.kv.n_pages > 0 || n[0] == 0;  // of the block table
        return n[2] == 0 || (s.kv.capacity > 0 && in_pages);
      };
      check({"kv_append",
             sizes(rows),
             [&](bool null) { return kv_append(bare(rows.view, null), {}, bare(s.kv, null), {}, exec()); },
             {},
             [&] { return fits(rows) || rows.view.shape[0] == 0; }});
      check({"kv_read",
             sizes(read),
             [&](bool null) { return kv_read(bare(ConstKv(s.kv), null), 0, bare(read.view, null), exec()); },
             {&read.memory},
             [&] { return fits(read) || (s.kv.capacity > 0 && read.view.shape[1] == 0); }});
      std::vector<Size> of_shift = sizes(rows);
      of_shift[2] = {"rows", true, {&moved}};
      check({"kv_shift",
             of_shift,
             [&](bool null) { return kv_shift(bare(s.kv, null), 0, moved, 1, {}, exec()); },
             {},
             [&] {
               return moved == 0 || (s.kv.capacity > 0 && (s.kv.page_size == 0 || s.kv.n_pages > 0 || s.kv.batch == 0));
             }});
    }
  }
}

TEST_P(ZeroSizes, Attention) {
  for (const Arithmetic arithmetic : kArithmetics) {
    for (const bool listed : {false, true}) {
      Array<4> q(random_, DType::kF32, {2, 4, 3, 32}, Values::kOrdinary),
          rows(random_, DType::kF32, {2, 2, 40, 32}, Values::kOrdinary), out(random_, DType::kF32, {2, 4, 3, 32});
      Array<3> lse(random_, DType::kF32, {2, 4, 3});
      const std::vector<int32_t> list = {0, 7, 39};
      AttentionProblem a;
      a.q = q.view, a.k = ConstView<4>(rows.view), a.v = a.k, a.out = out.view, a.lse = lse.view,
      a.arithmetic = arithmetic;
      a.scoring.causal = true;
      if (listed) a.lists = {.data = list.data(), .heads = 1, .length = 3, .block_size = 1, .stride = {}};
      std::vector<Size> sizes = {
          {"batch", true, {&a.q.shape[0], &a.k.batch, &a.v.batch, &a.out.shape[0], &a.lse.shape[0]}},
          {"key heads", false, {&a.k.heads, &a.v.heads}},
          {"heads", true, {&a.q.shape[1], &a.out.shape[1], &a.lse.shape[1]}},
          {"rows", true, {&a.q.shape[2], &a.out.shape[2], &a.lse.shape[2]}},
          {"keys", true, {&a.k.capacity, &a.v.capacity}},
          {"d_qk", false, {&a.q.shape[3], &a.k.dim}},
          {"d_v", false, {&a.v.dim, &a.out.shape[3]}}};
      if (listed) sizes.push_back({"entries", true, {&a.lists.length}});
      const auto view_of = [](AttentionProblem p, bool null) {
        p.q = bare(p.q, null), p.k = bare(p.k, null), p.v = bare(p.v, null), p.out = bare(p.out, null),
        p.lse = bare(p.lse, null);
        return p;
      };
      const auto legal = [&] {  // entries that name keys want keys
        const bool entries = listed && a.lists.length > 0 && a.q.shape[0] > 0 && a.q.shape[2] > 0;
        return !entries || a.k.capacity > 0;
      };
      const auto legal_range = [&] { return a.q.shape[1] == 0 || legal(); };  // without heads there are no tasks
      const auto written = [&](const std::string& text) {
        if (a.k.capacity > 0 && (!listed || a.lists.length > 0)) return;
        expect_all(a.out, 0, text);
        expect_all(a.lse, -kInf, text);
      };
      const std::string kind = std::string(listed ? " with lists in " : " in ") + arithmetic_name(arithmetic);
      check({"attention" + kind,
             sizes,
             [&](bool null) { return run_attention(view_of(a, null), GetParam()); },
             {&out.memory, &lse.memory},
             legal,
             written});
      check({"attention_range" + kind,
             sizes,
             [&](bool null) { return run_tasks(view_of(a, null), GetParam(), random_); },
             {&out.memory, &lse.memory},
             legal_range,
             written});
    }
  }
}

TEST_P(ZeroSizes, VarlenAttention) {
  Array<4> q(random_, DType::kF32, {1, 2, 6, 8}, Values::kOrdinary),
      rows(random_, DType::kF32, {1, 2, 9, 8}, Values::kOrdinary), out(random_, DType::kF32, {1, 2, 6, 8});
  const int32_t cu_q[] = {0, 2, 6}, cu_k[] = {0, 4, 9}, nothing[3] = {};
  for (const bool no_rows : {false, true}) {
    for (const bool no_keys : {false, true}) {
      for (const int64_t sequences : {0, 2}) {
        AttentionProblem a;
        a.q = q.view, a.k = ConstView<4>(rows.view), a.v = a.k, a.out = out.view;
        a.cu_q = no_rows ? nothing : cu_q, a.cu_k = no_keys ? nothing : cu_k;
        a.n_sequences = sequences;
        if (no_rows) a.q.shape[2] = a.out.shape[2] = 0;
        if (no_keys) a.k.capacity = a.v.capacity = 0;
        out.fill_bytes(Guarded::kCanary);
        const std::string text =
            std::to_string(sequences) + " sequences" + (no_rows ? ", no rows" : "") + (no_keys ? ", no keys" : "");
        const bool good = sequences > 0 || (no_rows && no_keys);  // all rows and keys belong to a sequence
        for (const bool tasks : {false, true}) {
          const Status s = tasks ? run_tasks(a, GetParam(), random_) : run_attention(a, GetParam());
          EXPECT_EQ(s.ok(), good) << text << ": " << s.detail;
          if (s.ok() && no_keys) expect_all(a.out, 0, text);
        }
      }
    }
  }
}

TEST_P(ZeroSizes, Merge) {
  Array<5> parts(random_, DType::kF32, {3, 2, 4, 3, 8}, Values::kOrdinary);
  Array<4> part_lse(random_, DType::kF32, {3, 2, 4, 3}, Values::kOrdinary), out(random_, DType::kF32, {2, 4, 3, 8});
  Array<3> lse(random_, DType::kF32, {2, 4, 3});
  const auto at = [&](size_t i) -> std::vector<int64_t*> {
    return {&parts.view.shape[i + 1], &part_lse.view.shape[i + 1], &out.view.shape[i], &lse.view.shape[i]};
  };
  check({"attention_merge",
         {{"parts", true, {&parts.view.shape[0], &part_lse.view.shape[0]}},
          {"batch", true, at(0)},
          {"heads", true, at(1)},
          {"rows", true, at(2)},
          {"dimension", false, {&parts.view.shape[4], &out.view.shape[3]}}},
         [&](bool null) {
           return attention_merge(bare(parts.view, null), bare(part_lse.view, null), bare(out.view, null), lse.view,
                                  nullptr, exec());
         },
         {&out.memory, &lse.memory},
         nullptr,
         [&](const std::string& text) {
           if (parts.view.shape[0] > 0) return;
           expect_all(out.view, 0, text);
           expect_all(lse.view, -kInf, text);
         }});
}

TEST_P(ZeroSizes, Indexers) {
  for (const IndexCombine combine : {IndexCombine::kSum, IndexCombine::kMax, IndexCombine::kEach}) {
    for (const Arithmetic arithmetic : kArithmetics) {
      const bool each = combine == IndexCombine::kEach;
      Array<4> q(random_, DType::kF32, {2, 4, 3, 8}, Values::kOrdinary),
          k(random_, DType::kF32, {2, 1, 10, 8}, Values::kOrdinary), out(random_, DType::kF32, {2, each ? 4 : 1, 3, 5});
      Array<3> weights(random_, DType::kF32, {2, 3, 4}, Values::kOrdinary);
      ConstKv store = k.view;
      IndexOptions o;
      o.combine = combine, o.arithmetic = arithmetic, o.block_size = 2;
      std::vector<Size> sizes = {
          {"batch", true, {&q.view.shape[0], &store.batch, &out.view.shape[0], &weights.view.shape[0]}},
          {"heads", false, {&q.view.shape[1], &weights.view.shape[2]}},
          {"rows", true, {&q.view.shape[2], &out.view.shape[2], &weights.view.shape[1]}},
          {"keys", true, {&store.capacity}},
          {"dimension", false, {&q.view.shape[3], &store.dim}},
          {"candidates", true, {&out.view.shape[3]}},
          {"block", false, {&o.block_size}},
          {"keys of a row", false, {&o.keys_per_row}},
          {"length", true, {&o.keys}}};
      check({"index_scores",
             sizes,
             [&](bool null) {
               const ConstView<3> w =
                   combine == IndexCombine::kSum ? bare(ConstView<3>(weights.view), null) : ConstView<3>();
               return index_scores(bare(q.view, null), bare(store, null), w, bare(out.view, null), o,
                                   with(index_scores_workspace(arithmetic, q.view.shape[1], q.view.shape[3])));
             },
             {&out.memory},
             [&] { return store.capacity > 0 || out.view.shape[3] == 0; },
             [&](const std::string& text) {
               if (o.keys == 0) expect_all(out.view, -kInf, text);
             }});
    }
  }
}

TEST_P(ZeroSizes, Largest) {
  Array<4> scores(random_, DType::kF32, {2, 4, 3, 5}, Values::kOrdinary), lists(random_, DType::kI32, {2, 4, 3, 4});
  for (const bool local : {false, true}) {
    int64_t k = 2;
    TopKOptions o;
    o.block_size = 2, o.local_blocks = local;
    const auto at = [&](size_t i) -> std::vector<int64_t*> { return {&scores.view.shape[i], &lists.view.shape[i]}; };
    check({"top_k",
           {{"batch", true, at(0)},
            {"heads", true, at(1)},
            {"rows", true, at(2)},
            {"scores", true, {&scores.view.shape[3]}},
            {"k", true, {&k}},
            {"places", true, {&lists.view.shape[3]}},
            {"block", false, {&o.block_size}},
            {"length", true, {&o.keys}}},
           [&](bool null) {
             return top_k(bare(scores.view, null), k, bare(lists.view, null), o, with(top_k_workspace(k)));
           },
           {&lists.memory},
           [&] { return lists.view.shape[3] >= k; },
           [&](const std::string& text) {
             if (scores.view.shape[3] > 0 && k > 0) return;
             for_each_element(lists.view,
                              [&](int64_t e) { EXPECT_EQ(static_cast<int32_t*>(lists.view.data)[e], -1) << text; });
           }});
  }
}

TEST_P(ZeroSizes, States) {
  Array<4> q(random_, DType::kF32, {2, 2, 3, 8}, Values::kOrdinary),
      k = q.with(random_, Strides::kContiguous), v(random_, DType::kF32, {2, 4, 3, 6}, Values::kOrdinary),
      gate(random_, DType::kF32, {2, 4, 3, 1}, Values::kOrdinary), state(random_, DType::kF32, {2, 4, 8, 6}),
      out(random_, DType::kF32, {2, 4, 3, 6});
  Array<5> states(random_, DType::kF32, {2, 2, 4, 8, 6});
  const auto shape = [](auto& array, size_t i) { return &array.view.shape[i]; };
  const auto unchanged = [&](const std::string& text) {
    EXPECT_TRUE(v.view.shape[2] > 0 || state.untouched()) << text;
  };
  for (const bool range : {false, true}) {
    check({"linear_attention",
           {{"batch",
             true,
             {shape(q, 0), shape(k, 0), shape(v, 0), shape(gate, 0), shape(state, 0), shape(out, 0), shape(states, 0)}},
            {"q heads", false, {shape(q, 1)}},
            {"k heads", false, {shape(k, 1)}},
            {"v heads", false, {shape(v, 1), shape(gate, 1), shape(state, 1), shape(out, 1), shape(states, 2)}},
            {"tokens", true, {shape(q, 2), shape(k, 2), shape(v, 2), shape(gate, 2), shape(out, 2)}},
            {"d_k", false, {shape(q, 3), shape(k, 3), shape(state, 2), shape(states, 3)}},
            {"d_v", false, {shape(v, 3), shape(state, 3), shape(out, 3), shape(states, 4)}},
            {"states to go back", true, {shape(states, 1)}}},
           [&](bool null) {
             LinearAttentionProblem p;
             p.q = bare(q.view, null), p.k = bare(k.view, null), p.v = bare(v.view, null), p.out = bare(out.view, null);
             p.decay = p.beta = bare(gate.view, null), p.state = bare(state.view, null),
             p.states = bare(states.view, null);
             const Exec e = with(linear_attention_workspace(p));
             return range ? linear_attention_range(p, 0, linear_attention_tasks(p), e) : linear_attention(p, e);
           },
           {&state.memory, &out.memory, &states.memory},
           nullptr,
           unchanged});
  }
  for (const bool last : {false, true}) {
    const size_t channels = last ? 2 : 1, tokens = last ? 1 : 2;
    const auto of = [&](int64_t c, int64_t n) {
      return last ? std::array<int64_t, 3>{2, n, c} : std::array<int64_t, 3>{2, c, n};
    };
    Array<3> x(random_, DType::kF32, of(5, 7), Values::kOrdinary), past(random_, DType::kF32, of(5, 3)),
        y = x.like(random_);
    Array<2> weight(random_, DType::kF32, {5, 4}, Values::kOrdinary);
    check({"causal_conv",
           {{"batch", true, {shape(x, 0), shape(y, 0), shape(past, 0)}},
            {"channels", true, {shape(x, channels), shape(y, channels), shape(past, channels), shape(weight, 0)}},
            {"tokens", true, {shape(x, tokens), shape(y, tokens)}},
            {"width", false, {shape(weight, 1)}}},
           [&](bool null) {
             CausalConvProblem p;
             p.x = bare(x.view, null), p.weight = bare(weight.view, null), p.out = bare(y.view, null),
             p.state = bare(past.view, null);
             p.channels_last = last;
             return causal_conv(p, exec());
           },
           {&past.memory, &y.memory},
           nullptr,
           [&](const std::string& text) { EXPECT_TRUE(*shape(x, tokens) > 0 || past.untouched()) << text; }});
  }
}

}  // namespace
}  // namespace simdattn::test
