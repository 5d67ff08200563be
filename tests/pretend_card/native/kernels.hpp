// Kernels that are written in Python: given the CPU's views of what they read and write, launched, ordered,
// counted and captured as all others.
#pragma once
#include "graphs.hpp"

namespace {

[[noreturn]] void illegal(const std::string& what) {
  throw c10::AcceleratorError(
      {__func__, __FILE__, 0}, 700,
      "CUDA error: an illegal memory access was encountered (pretend card: " + what + ")");
}

// A tensor at a pointer that a library was given. Nothing but memory of the card that is in use may be there.
at::Tensor at_pointer(uint64_t pointer, std::vector<int64_t> sizes, at::ScalarType dtype) {
  std::lock_guard<std::recursive_mutex> lock(mu);
  auto* p = reinterpret_cast<char*>(pointer);
  size_t n = c10::elementSize(dtype);
  for (auto size : sizes) n *= static_cast<size_t>(size);
  Block* b = block_at(p);
  if (!b) illegal("a pointer to what is no memory of a card");
  if (p + n > b->ptr + b->size)
    illegal(c10::str(n, " bytes from an address with ", b->ptr + b->size - p, " behind it"));
  c10::DataPtr data(p, b, &CardAllocator::none,
                    c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(b->device)));
  c10::Storage storage(c10::Storage::use_byte_size_t(), n, std::move(data), nullptr, false);
  auto t = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::scalarTypeToTypeMeta(dtype));
  t.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return t;
}

using Tensors = std::vector<at::Tensor>;

void call(const py::function& work, const Tensors& reads, const Tensors& writes) {
  py::gil_scoped_acquire gil;
  py::list near;
  for (auto& t : reads) near.append(t);
  for (auto& t : writes) near.append(t);
  work(*near);
}

Tensors views(const Tensors& of, const std::function<at::Tensor(const at::Tensor&)>& view) {
  Tensors found;
  for (auto& t : of) found.push_back(view(t));
  return found;
}

void touch_all(const Tensors& some, int s, bool write, const std::string& name) {
  for (auto& t : some) {
    if (!t.is_cuda() || t.device().index() != card_of(s))
      illegal(name + " was given a tensor on " + t.device().str());
    touch(t, s, write, name);
    if (write && captured(s)) save_for_capture(t);
  }
}

double all_bytes(const Tensors& some) {
  double n = 0;
  for (auto& t : some) n += moved_bytes(t);
  return n;
}

bool only_followed(const Tensors& reads, const Tensors& writes) {
  int64_t largest = 0;
  for (auto* some : {&reads, &writes})
    for (auto& t : *some) largest = std::max(largest, t.numel());
  return dry && largest > dry_above;
}

std::pair<double, double> measured(const py::function& measure, const Tensors& reads, const Tensors& writes) {
  py::gil_scoped_acquire gil;
  py::list near;
  for (auto& t : reads) near.append(t);
  for (auto& t : writes) near.append(t);
  return measure(*near).cast<std::pair<double, double>>();
}

using Measure = std::optional<py::function>;

Node python_node(const std::string& name, const Tensors& reads, const Tensors& writes,
                 const py::function& work, const Measure& measure) {
  Node n{name, {}, all_bytes(reads), all_bytes(writes), nullptr, nullptr};
  for (auto& t : reads) n.refs.push_back(ref_of(t, false));
  for (auto& t : writes) n.refs.push_back(ref_of(t, true));
  const Tensors from = views(reads, raw_alias), to = views(writes, raw_alias);
  if (!only_followed(reads, writes)) n.again = [work, from, to](int) { call(work, from, to); };
  if (measure) n.measure = [measure = *measure, from, to]() { return measured(measure, from, to); };
  return n;
}

// `stream`: -1 is the current one. `measure`, given what `work` is given, tells the bytes read and written,
// where they are not those of the tensors.
void python_kernel(int device, const std::string& name, const Tensors& reads, const Tensors& writes,
                   const py::function& work, int stream, const Measure& measure) {
  DeviceHere h(device);
  const int s = launch_on(stream < 0 ? here(device) : stream_index(device, stream), name);
  touch_all(reads, s, false, name);
  touch_all(writes, s, true, name);
  if (captured(s)) add_node(s, python_node(name, reads, writes, work, measure));
  Shared shared;
  auto near = [&](const at::Tensor& t) { return host_alias(t, shared); };
  const Tensors from = views(reads, near), to = views(writes, near);
  auto [read, written] =
      measure && !captured(s) ? measured(*measure, from, to) : std::pair(all_bytes(reads), all_bytes(writes));
  account(s, read, written);
  if (!only_followed(reads, writes)) call(work, from, to);
}

}  // namespace
