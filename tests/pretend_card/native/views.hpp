// The CPU's view (and the meta device's) of a tensor on the card.
#pragma once
#include "work.hpp"

namespace {

using Shared = std::unordered_map<c10::StorageImpl*, c10::Storage>;

c10::Storage host_storage(const c10::Storage& of) {
  auto* holder = new c10::Storage(of);
  c10::DataPtr ptr(
      of.mutable_data(), holder, [](void* p) { delete static_cast<c10::Storage*>(p); },
      c10::Device(c10::kCPU));
  return c10::Storage(c10::Storage::use_byte_size_t(), of.nbytes(), std::move(ptr),
                      c10::GetAllocator(c10::kCPU), true);
}

at::Tensor alias_on(c10::Storage storage, const at::Tensor& t) {
  auto a = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                    c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
  auto* ai = a.unsafeGetTensorImpl();
  ai->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) ai->set_wrapped_number(true);
  if (t.is_conj()) ai->_set_conj(true);
  if (t.is_neg()) ai->_set_neg(true);
  return a;
}

at::Tensor host_alias(const at::Tensor& t, Shared& shared) {
  auto* impl = t.storage().unsafeGetStorageImpl();
  auto it = shared.find(impl);
  if (it == shared.end()) it = shared.emplace(impl, host_storage(t.storage())).first;
  return alias_on(c10::Storage(it->second), t);
}

// The place alone: nothing is kept alive by it, as a graph keeps nothing alive.
at::Tensor raw_alias(const at::Tensor& t) {
  c10::DataPtr at(t.storage().mutable_data(), c10::Device(c10::kCPU));
  return alias_on(
      c10::Storage(c10::Storage::use_byte_size_t(), t.storage().nbytes(), std::move(at), nullptr, false), t);
}

at::Tensor meta_alias(const at::Tensor& t, Shared& shared) {
  auto* impl = t.storage().unsafeGetStorageImpl();
  auto it = shared.find(impl);
  if (it == shared.end()) {
    c10::DataPtr none(nullptr, c10::Device(c10::kMeta));
    c10::Storage fresh(c10::Storage::use_byte_size_t(), t.storage().nbytes(), std::move(none),
                       c10::GetAllocator(c10::kMeta), true);
    it = shared.emplace(impl, std::move(fresh)).first;
  }
  auto a = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(it->second),
                                                    c10::DispatchKeySet(c10::DispatchKey::Meta), t.dtype());
  auto* ai = a.unsafeGetTensorImpl();
  ai->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) ai->set_wrapped_number(true);
  return a;
}

at::Tensor card_view(const c10::Storage& storage, const at::Tensor& like) {
  auto v =
      at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(storage),
                                               c10::DispatchKeySet(c10::DispatchKey::CUDA), like.dtype());
  v.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return v;
}

at::Tensor to_card(const at::Tensor& out, int device) {
  auto w = empty_on(device, out.sizes(), out.strides(), out.scalar_type());
  size_t bytes = at::detail::computeStorageNbytes(out.sizes(), out.strides(), out.dtype().itemsize());
  if (out.numel() && bytes) memcpy(w.mutable_data_ptr(), out.const_data_ptr(), bytes);
  return w;
}

const at::Tensor& resize_card_(const at::Tensor& self, c10::IntArrayRef size,
                               std::optional<at::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  if (self.sizes() == size) return self;
  size_t bytes =
      at::detail::computeStorageNbytesContiguous(size, self.dtype().itemsize(), self.storage_offset());
  auto* storage = self.storage().unsafeGetStorageImpl();
  if (bytes > storage->nbytes()) {
    DeviceHere h(self.device().index());
    auto fresh = allocator.allocate(bytes);
    if (storage->nbytes()) memcpy(fresh.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(fresh));
    storage->set_nbytes(bytes);
  }
  impl->set_sizes_contiguous(size);
  return self;
}

}  // namespace
