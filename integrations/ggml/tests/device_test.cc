// The plug-in as a device (SIMDATTN_GGML=device) under ggml's scheduler, beside the CPU backend and beside a GPU's.
//
//   device_test PLUGIN [CASES]
#include "graphs.h"

namespace {

using tests::check;

/// The graph by a scheduler of these backends, in order of preference.
tests::Floats by_scheduler(tests::Graph& graph, std::vector<ggml_backend_t> backends, int* splits) {
  ggml_backend_sched_t sched =
      ggml_backend_sched_new(backends.data(), nullptr, static_cast<int>(backends.size()), 2048, false, true);
  check(ggml_backend_sched_alloc_graph(sched, graph.graph), "alloc_graph");
  graph.write_inputs();
  check(ggml_backend_sched_graph_compute(sched, graph.graph) == GGML_STATUS_SUCCESS, "graph_compute: " + graph.text);
  *splits = ggml_backend_sched_get_n_splits(sched);
  tests::Floats result = graph.result();
  ggml_backend_sched_free(sched);
  return result;
}

void properties(ggml_backend_dev_t device) {
  ggml_backend_dev_props props;
  ggml_backend_dev_get_props(device, &props);
  check(props.type == GGML_BACKEND_DEVICE_TYPE_ACCEL && ggml_backend_dev_type(device) == props.type, "type");
  check(std::strcmp(props.name, "simdattn") == 0 && std::strcmp(ggml_backend_dev_name(device), "simdattn") == 0,
        "name");
  check(props.memory_total == 0, "no memory of its own");
  check(ggml_backend_dev_buffer_type(device) == ggml_backend_cpu_buffer_type(), "the CPU's buffers");
  check(ggml_backend_dev_supports_buft(device, ggml_backend_cpu_buffer_type()), "supports the CPU's buffers");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  setenv("SIMDATTN_GGML", "device", 1);
  ggml_backend_load_all();
  ggml_backend_reg_t registration = ggml_backend_load(argv[1]);
  if (registration == nullptr || ggml_backend_reg_dev_count(registration) != 1) return std::printf("no device\n"), 1;
  ggml_backend_dev_t device = ggml_backend_reg_dev_get(registration, 0);
  properties(device);
  ggml_backend_t ours = ggml_backend_dev_init(device, nullptr), cpu = tests::cpu_backend(2);
  reinterpret_cast<ggml_backend_set_n_threads_t>(
      ggml_backend_reg_get_proc_address(registration, "ggml_backend_set_n_threads"))(ours, 2);
  check(ggml_backend_get_device(ours) == device && std::strcmp(ggml_backend_name(ours), "simdattn") == 0, "backend");
  const int cases = argc > 2 ? std::atoi(argv[2]) : 12;
  for (int i = 0; i < cases; ++i) {
    tests::Graph one(static_cast<unsigned>(i + 1)), two(static_cast<unsigned>(i + 1));
    int splits = 0, of_cpu = 0;
    const tests::Floats got = by_scheduler(one, {ours, cpu}, &splits), expected = by_scheduler(two, {cpu}, &of_cpu);
    check(tests::error(got, expected) < tests::kMostError && got != expected, one.text);
    check(of_cpu == 1 && splits > 1, "the device has splits of its own: " + std::to_string(splits));
    check(one.as_built(), "the graph is afterwards as it was");
  }
  ggml_backend_free(ours);
  ggml_backend_free(cpu);
  std::printf("%d graphs, %d failures\n", cases, tests::failures);
  return tests::failures == 0 ? 0 : 1;
}
