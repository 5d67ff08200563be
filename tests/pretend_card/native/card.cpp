// A CUDA device made of host memory, for a build of torch that has none.
//
// Tensors are real: device type CUDA, storages from an allocator that works like torch's caching one
// (segments, splitting, a limit). Every operator without a kernel of its own falls through to `fallback`,
// which gives the CPU's kernel tensors that share the memory. Operands on two devices are refused as CUDA
// refuses them. Streams and events are vector clocks: an operator that reads what another stream has written
// and that nobody waited for raises, though the numbers, computed at once, would have been right.
#include "guard.hpp"

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

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  c10::SetAllocator(c10::kCUDA, &allocator);
  m.def("configure", [](int n, size_t total, size_t context, size_t foreign, int major, int minor) {
    cards = n;
    for (auto& c : card)
      c.total = total, c.context = context, c.foreign = foreign, c.major = major, c.minor = minor;
  });
  m.def("options", [](bool s, bool p, bool d) { strict = s, poison = p && !d, dry = d; });
  m.def("set_foreign", [](int d, size_t bytes) { card[d].foreign = bytes; });
  m.def("set_total", [](int d, size_t bytes) { card[d].total = bytes; });
  m.def("memory", [](int d) {
    std::lock_guard<std::recursive_mutex> lock(mu);
    auto& c = card[d];
    return std::map<std::string, uint64_t>{{"total", c.total},
                                           {"free", budget(c) > c.reserved ? budget(c) - c.reserved : 0},
                                           {"allocated", c.allocated},
                                           {"reserved", c.reserved},
                                           {"peak_allocated", c.peak_allocated},
                                           {"peak_reserved", c.peak_reserved},
                                           {"mallocs", c.mallocs},
                                           {"frees", c.frees},
                                           {"ooms", c.ooms},
                                           {"pinned", pinned_bytes},
                                           {"pinned_peak", pinned_peak}};
  });
  m.def("reset_peak", [](int d) {
    card[d].peak_allocated = card[d].allocated;
    card[d].peak_reserved = card[d].reserved;
  });
  m.def("empty_cache", []() {
    std::lock_guard<std::recursive_mutex> lock(mu);
    require_alive("cudaFree");
    for (auto& c : card) release_cached(c);
    ++counts["empty_cache"];
  });
  m.def("counts", []() {
    std::lock_guard<std::recursive_mutex> lock(mu);
    return counts;
  });
  m.def("reset_counts", []() {
    std::lock_guard<std::recursive_mutex> lock(mu);
    counts.clear();
  });
  m.def("races", []() {
    std::lock_guard<std::recursive_mutex> lock(mu);
    for (auto& one : late) races.push_back(one);
    late.clear();
    return races;
  });
  m.def("forget_races", []() {
    std::lock_guard<std::recursive_mutex> lock(mu);
    races.clear();
  });
  m.def("fail_after", [](uint64_t n, const std::string& kind) {
    fail_at = n ? launched + n : 0;
    fail_kind = kind;
    if (!n) lost = false;
  });
  m.def("host_view", [](const at::Tensor& t) {
    Shared shared;
    return t.is_cuda() ? host_alias(t, shared) : t;
  });
  m.def("card_copy", [](const at::Tensor& t, int device) { return to_card(t, device); });
  m.def("launch", [](int device, const std::string& name) { return launch(device, name); });
  m.def("set_device", [](int d) {
    int before = current_device;
    current_device = d;
    return before;
  });
  m.def("get_device", []() { return current_device; });
}
