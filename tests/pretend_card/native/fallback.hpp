// Every operator without a kernel of its own: the CPU's kernel is given tensors that share the card's memory.
#pragma once
#include "views.hpp"

namespace {

// Operators that let operands of another device in.
const std::set<std::string> may_mix = {"aten::index.Tensor",     "aten::index.Tensor_out",
                                       "aten::_index_put_impl_", "aten::index_put_",
                                       "aten::index_put",        "aten::_unsafe_index.Tensor"};
// On a card the host waits for these.
const std::set<std::string> host_waits = {"aten::_local_scalar_dense",
                                          "aten::nonzero",
                                          "aten::nonzero.out",
                                          "aten::masked_select",
                                          "aten::masked_select.out",
                                          "aten::equal",
                                          "aten::_unique2",
                                          "aten::unique_dim",
                                          "aten::unique_consecutive",
                                          "aten::bincount",
                                          "aten::is_nonzero",
                                          "aten::repeat_interleave.Tensor",
                                          "aten::argwhere"};
// No kernel is launched.
const std::set<std::string> no_kernel = {"aten::set_.source_Tensor", "aten::is_set_to",
                                         "aten::_has_same_storage_numel"};

struct Record {
  at::Tensor card, near;
  bool write;
};

bool run(const c10::OperatorHandle& op, torch::jit::Stack* stack, bool dryly);

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  if (dry) {
    int64_t largest = 0;
    const size_t count = op.schema().arguments().size();
    auto see = [&](const at::Tensor& t) {
      if (t.defined() && t.is_cuda()) largest = std::max(largest, t.numel());
    };
    for (size_t i = stack->size() - count; i < stack->size(); ++i) {
      const auto& v = (*stack)[i];
      if (v.isTensor())
        see(v.toTensor());
      else if (v.isTensorList())
        for (const auto& t : v.toTensorVector()) see(t);
    }
    if (largest > dry_above) {
      torch::jit::Stack saved(stack->end() - static_cast<int64_t>(count), stack->end());
      try {
        if (run(op, stack, true)) return;
      } catch (const c10::OutOfMemoryError&) {
        throw;
      } catch (const c10::AcceleratorError&) {
        throw;
      } catch (const c10::NotImplementedError&) {
      }
      stack->resize(stack->size() > count ? stack->size() : stack->size());
      stack->erase(stack->end() - static_cast<int64_t>(std::min(stack->size(), count)), stack->end());
      stack->insert(stack->end(), saved.begin(), saved.end());
    }
  }
  run(op, stack, false);
}

bool run(const c10::OperatorHandle& op, torch::jit::Stack* stack, bool dryly) {
  const auto& schema = op.schema();
  const std::string name =
      schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name();
  const auto& arguments = schema.arguments();
  const size_t begin = stack->size() - arguments.size();
  int device = -1;
  auto see = [&](const at::Tensor& t) {
    if (!t.defined() || !t.is_cuda()) return;
    int d = t.device().index();
    if (device < 0) device = d;
    TORCH_CHECK(d == device || may_mix.count(name),
                "Expected all tensors to be on the same device, but found at least two devices, cuda:",
                device, " and cuda:", d, "! (pretend card, ", name, ")");
  };
  bool asks_for_card = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& v = (*stack)[begin + i];
    if (v.isTensor())
      see(v.toTensor());
    else if (v.isTensorList())
      for (const auto& t : v.toTensorVector()) see(t);
    else if (v.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& t : v.toOptionalTensorVector())
        if (t) see(*t);
    } else if (v.isDevice() && v.toDevice().is_cuda()) {
      asks_for_card = true;
      if (device < 0) device = v.toDevice().has_index() ? v.toDevice().index() : current_device;
    }
  }
  if (device < 0) device = current_device;
  if (dryly && (host_waits.count(name) || !op.hasKernelForDispatchKey(c10::DispatchKey::Meta))) {
    if (host_waits.count(name) ||
        !(op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
          op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
          op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional)))
      return false;
  }
  DeviceHere h(device);
  const int s = no_kernel.count(name) ? here(device) : launch(device, name);
  Shared shared;
  std::vector<Record> records;
  bool boolean_index = false;
  auto bring = [&](const at::Tensor& t, const c10::Argument& argument, bool index) -> at::Tensor {
    if (!t.defined()) return t;
    if (!t.is_cuda()) {
      bool scalar = t.dim() == 0 && !(argument.name() == "index" || argument.name() == "indices");
      TORCH_CHECK(!t.device().is_cpu() || scalar || (may_mix.count(name) && index),
                  "Expected all tensors to be on the same device, but got ", argument.name(), " is on ",
                  t.device(), ", different from other tensors on cuda:", device,
                  " (pretend card, when checking argument in method ", name, ")");
      if (index && may_mix.count(name)) {
        ++counts["indices from the host"];
        host_waits_for(s);
      }
      if (dryly) return at::empty_strided(t.sizes(), t.strides(), t.options().device(c10::kMeta));
      return t;
    }
    if (index && (t.scalar_type() == at::kBool || t.scalar_type() == at::kByte)) boolean_index = true;
    bool write = argument.alias_info() && argument.alias_info()->isWrite();
    touch(t, s, write, c10::str(name, "(", argument.name(), " ", t.sizes(), ")"));
    auto near = dryly ? meta_alias(t, shared) : host_alias(t, shared);
    records.push_back({t, near, write});
    return near;
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    auto& v = (*stack)[begin + i];
    const auto& argument = arguments[i];
    bool index = argument.name() == "indices";
    if (v.isTensor()) {
      v = bring(v.toTensor(), argument, index);
    } else if (v.isTensorList()) {
      auto list = v.toTensorVector();
      for (auto& t : list) t = bring(t, argument, index);
      v = c10::List<at::Tensor>(at::ArrayRef<at::Tensor>(list));
    } else if (v.isOptionalTensorList()) {
      auto list = v.toOptionalTensorVector();
      c10::List<std::optional<at::Tensor>> near;
      for (const std::optional<at::Tensor>& t : list)
        near.push_back(t ? std::optional<at::Tensor>(bring(*t, argument, index)) : t);
      v = near;
    } else if (v.isDevice() && v.toDevice().is_cuda()) {
      v = c10::Device(dryly ? c10::kMeta : c10::kCPU);
    }
  }
  op.redispatchBoxed(c10::DispatchKeySet(dryly ? c10::DispatchKey::Meta : c10::DispatchKey::CPU), stack);
  if (host_waits.count(name) || boolean_index) {
    host_waits_for(s);
    std::lock_guard<std::recursive_mutex> lock(mu);
    ++counts["host waits: " + name + (boolean_index ? " by booleans" : "")];
    ++counts["host waits"];
  }
  for (auto& r : records)
    if (r.write && r.near.sizes() != r.card.sizes()) {
      resize_card_(r.card, r.near.sizes(), std::nullopt);
      size_t bytes =
          at::detail::computeStorageNbytes(r.near.sizes(), r.near.strides(), r.near.dtype().itemsize());
      r.card.unsafeGetTensorImpl()->set_sizes_and_strides(r.near.sizes(), r.near.strides());
      if (bytes && !dryly) memcpy(r.card.mutable_data_ptr(), r.near.const_data_ptr(), bytes);
    }
  // Not computed, but no garbage either: what small results say (is it finite, which is the best) is looked at.
  if (dryly)
    for (auto& r : records)
      if (r.write && r.card.numel() && r.card.numel() <= 16 * dry_above && r.card.is_non_overlapping_and_dense())
        memset(r.card.mutable_data_ptr(), 0, r.card.numel() * r.card.dtype().itemsize());
  auto back = [&](const at::Tensor& out) -> at::Tensor {
    if (!out.defined() || !(dryly ? out.is_meta() : out.device().is_cpu())) return out;
    for (auto& r : records)
      if (r.near.unsafeGetTensorImpl() == out.unsafeGetTensorImpl()) return r.card;
    if (records.empty() && !asks_for_card) return out;
    for (auto& [impl, storage] : shared)
      if (out.has_storage() && out.storage().unsafeGetStorageImpl() == storage.unsafeGetStorageImpl())
        for (auto& r : records)
          if (r.card.storage().unsafeGetStorageImpl() == impl) return card_view(r.card.storage(), out);
    if (dryly) {
      auto w = empty_on(device, out.sizes(), out.strides(), out.scalar_type());
      if (w.numel() && w.numel() <= 16 * dry_above) memset(w.mutable_data_ptr(), 0, w.storage().nbytes());
      touch(w, s, true, name);
      return w;
    }
    auto w = to_card(out, device);
    touch(w, s, true, name);
    return w;
  };
  const size_t results = schema.returns().size();
  for (size_t i = stack->size() - results; i < stack->size(); ++i) {
    auto& v = (*stack)[i];
    if (v.isTensor()) {
      v = back(v.toTensor());
    } else if (v.isTensorList()) {
      auto list = v.toTensorVector();
      for (auto& t : list) t = back(t);
      v = c10::List<at::Tensor>(at::ArrayRef<at::Tensor>(list));
    }
  }
  return true;
}

}  // namespace
