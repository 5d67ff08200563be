// Operators that a card does itself: new tensors and views.
#pragma once
#include "fallback.hpp"

namespace {

int index_of(std::optional<c10::Device> device) {
  int d = device && device->has_index() ? device->index() : current_device;
  TORCH_CHECK(d < cards, "CUDA error: invalid device ordinal");
  return d;
}

at::Tensor empty_card(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                      std::optional<c10::Device> device, std::optional<bool> pin,
                      std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  {
    std::lock_guard<std::recursive_mutex> lock(mu);
    require_alive("empty");
  }
  DeviceHere h(index_of(device));
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided_card(c10::IntArrayRef size, c10::IntArrayRef stride,
                              std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                              std::optional<c10::Device> device, std::optional<bool> pin) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  {
    std::lock_guard<std::recursive_mutex> lock(mu);
    require_alive("empty_strided");
  }
  return empty_on(index_of(device), size, stride, c10::dtype_or_default(dtype));
}

at::Tensor as_strided_card(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride,
                           std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
at::Tensor view_card(const at::Tensor& self, c10::IntArrayRef size) { return at::native::view(self, size); }
at::Tensor reshape_alias_card(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}
at::Tensor unfold_card(const at::Tensor& self, int64_t dim, int64_t size, int64_t step) {
  return at::native::unfold(self, dim, size, step);
}

at::Tensor& set_storage_card(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size,
                             c10::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  if (stride.empty() && !size.empty())
    impl->set_sizes_contiguous(size);
  else
    impl->set_sizes_and_strides(size, stride, offset);
  return self;
}
at::Tensor& set_tensor_card(at::Tensor& self, const at::Tensor& source) {
  return set_storage_card(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

void record_stream_card(at::Tensor& self, c10::Stream stream) {
  std::lock_guard<std::recursive_mutex> lock(mu);
  if (Block* b = block_of(self)) b->recorded.insert(stream_index(stream.device_index(), stream.id()));
  ++counts["record_stream"];
}

}  // namespace
