// A CUDA device made of host memory, for a build of torch that has none.
//
// Tensors are real: device type CUDA, storages from an allocator that works like torch's caching one
// (segments, splitting, a limit). Every operator without a kernel of its own falls through to `fallback`,
// which gives the CPU's kernel tensors that share the memory. Operands on two devices are refused as CUDA
// refuses them. Streams and events are vector clocks: an operator that reads what another stream has written
// and that nobody waited for raises, though the numbers, computed at once, would have been right.
#include "kernels.hpp"

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty_card);
  m.impl("empty_strided", &empty_strided_card);
  m.impl("as_strided", &as_strided_card);
  m.impl("view", &view_card);
  m.impl("_reshape_alias", &reshape_alias_card);
  m.impl("unfold", &unfold_card);
  m.impl("resize_", &resize_card_);
  m.impl("set_.source_Storage_storage_offset", &set_storage_card);
  m.impl("set_.source_Tensor", &set_tensor_card);
  m.impl("copy_", &copy_card_);
  m.impl("record_stream", &record_stream_card);
  m.impl("scaled_dot_product_attention", torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

namespace {

using Figures = std::map<std::string, uint64_t>;

Figures memory_of(int d) {
  std::lock_guard<std::recursive_mutex> lock(mu);
  auto& c = card[d];
  return {{"total", c.total},
          {"free", free_bytes(c)},
          {"allocated", c.allocated},
          {"reserved", c.reserved},
          {"peak_allocated", c.peak_allocated},
          {"peak_reserved", c.peak_reserved},
          {"graphs", c.graphs},
          {"mallocs", c.mallocs},
          {"frees", c.frees},
          {"ooms", c.ooms},
          {"pinned", pinned_bytes},
          {"pinned_peak", pinned_peak},
          {"pinned_reserved", pinned_reserved},
          {"pinned_reserved_peak", pinned_reserved_peak}};
}

void fail_after(uint64_t n, const std::string& kind) {
  TORCH_CHECK(!n || fails_once.count(kind) || fails_forever.count(kind), "no failure is called ", kind);
  fail_at = n ? launched + n : 0;
  fail_kind = kind;
  if (!n) lost = false;
}

void empty_cache() {
  std::lock_guard<std::recursive_mutex> lock(mu);
  refuse_in_capture("cudaFree");
  require_alive("cudaFree");
  for (auto& c : card) release_cached(c);
  ++counts["empty_cache"];
}

void clear_workspaces() {
  std::lock_guard<std::recursive_mutex> lock(mu);
  for (auto& b : workspaces)
    if (b) give(std::exchange(b, nullptr));
}

std::vector<std::string> races_found() {
  std::lock_guard<std::recursive_mutex> lock(mu);
  for (auto& one : late) races.push_back(one);
  late.clear();
  return races;
}

void bind_device(py::module_& m) {
  m.def("configure", [](int n) { cards = n; });
  m.def("configure_card", [](int d, size_t total, size_t context, size_t foreign, int major, int minor) {
    auto& c = card[d];
    c.total = total, c.context = context, c.foreign = foreign, c.major = major, c.minor = minor;
  });
  m.def("options", [](bool s, bool p, bool d) { strict = s, poison = p && !d, dry = d; });
  m.def("set_foreign", [](int d, size_t bytes) { card[d].foreign = bytes; });
  m.def("set_total", [](int d, size_t bytes) { card[d].total = bytes; });
  m.def("set_workspace", [](size_t bytes) { workspace_bytes = bytes; });
  m.def("set_node_bytes", [](size_t bytes) { node_bytes = bytes; });
  m.def("set_device", [](int d) { return std::exchange(current_device, d); });
  m.def("get_device", []() { return current_device; });
  m.def("current_stream", [](int d) { return current_stream[d]; });
  m.def("fail_after", &fail_after);
}

void bind_memory(py::module_& m) {
  m.def("memory", &memory_of);
  m.def("reset_peak", [](int d) {
    card[d].peak_allocated = card[d].allocated;
    card[d].peak_reserved = card[d].reserved;
  });
  m.def("empty_cache", &empty_cache);
  m.def("empty_host_cache", &PinnedAllocator::empty_cache);
  m.def("host_register", &host_register);
  m.def("host_unregister", &host_unregister);
  m.def("clear_workspaces", &clear_workspaces);
}

void bind_counters(py::module_& m) {
  m.def("counts", []() {
    std::lock_guard<std::recursive_mutex> lock(mu);
    return counts;
  });
  m.def("reset_counts", []() {
    std::lock_guard<std::recursive_mutex> lock(mu);
    counts.clear();
    wait_stacks.clear();
  });
  m.def("set_layer", [](const std::string& name) { return std::exchange(layer, name); });
  m.def("keep_stacks", [](bool on) { return std::exchange(keep_stacks, on); });
  m.def("wait_stacks", []() {
    std::lock_guard<std::recursive_mutex> lock(mu);
    return wait_stacks;
  });
  m.def("races", &races_found);
  m.def("forget_races", []() {
    std::lock_guard<std::recursive_mutex> lock(mu);
    races.clear();
    late.clear();
  });
}

void bind_clock(py::module_& m) {
  m.def("run_clock", [](bool on) { return std::exchange(clock_runs, on); });
  m.def("set_costs", [](double launch, double replay, double node, double wait, double memory, double link) {
    costs = {launch, replay, node, wait, memory, link};
  });
  m.def("elapsed",
        [](uint64_t from, uint64_t to) {  // milliseconds between two of torch's events, by their event_id
          return Guard().elapsedTime(reinterpret_cast<void*>(from), reinterpret_cast<void*>(to), 0);
        });
  m.def("host_time", []() { return host_time; });
  m.def("pass_time", [](double microseconds) { host_time += microseconds; });
  m.def("busy_until", [](int d, int stream) { return busy_until[stream_index(d, stream)]; });
}

void bind_kernels(py::module_& m) {
  m.def("host_view", [](const at::Tensor& t) {
    Shared shared;
    return t.is_cuda() ? host_alias(t, shared) : t;
  });
  m.def("at_pointer", [](uint64_t pointer, std::vector<int64_t> sizes, py::object dtype) {
    return at_pointer(pointer, std::move(sizes), py::cast<at::ScalarType>(dtype));
  });
  m.def("kernel", &python_kernel, py::arg("device"), py::arg("name"), py::arg("reads"), py::arg("writes"),
        py::arg("work"), py::arg("stream") = -1, py::arg("measure") = py::none());
}

void bind_graphs(py::module_& m) {
  m.def("new_pool", &new_pool);
  m.def("is_capturing", []() { return captured(here(current_device)); });
  py::class_<Graph, std::shared_ptr<Graph>>(m, "Graph")
      .def(py::init<>())
      .def("begin", &begin_capture)
      .def("end", &end_capture)
      .def("replay", &replay)
      .def("reset", &reset_graph)
      .def_readonly("pool", &Graph::pool)
      .def_readonly("replays", &Graph::replays)
      .def("nodes", [](const Graph& g) {
        std::vector<std::string> names;
        for (auto& node : g.nodes) names.push_back(node.name);
        return names;
      });
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  c10::SetAllocator(c10::kCUDA, &allocator);
  bind_device(m);
  bind_memory(m);
  bind_counters(m);
  bind_clock(m);
  bind_kernels(m);
  bind_graphs(m);
}
