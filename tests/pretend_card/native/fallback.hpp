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
// What cuBLAS does.
const std::set<std::string> products = {
    "aten::mm",          "aten::mm.out",   "aten::addmm",   "aten::addmm.out",
    "aten::addmm_",      "aten::bmm",      "aten::bmm.out", "aten::baddbmm",
    "aten::baddbmm.out", "aten::baddbmm_", "aten::mv",      "aten::addmv",
    "aten::addmv.out",   "aten::dot",      "aten::_int_mm", "aten::_addmm_activation"};

struct About {
  std::string name;
  bool mixes, waits, launches, is_product, looks_up, writes_rows, overwrites, followed;
};
std::unordered_map<const c10::FunctionSchema*, About> known_operators;

bool has_shapes(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  for (auto key :
       {DispatchKey::Meta, DispatchKey::CompositeExplicitAutograd, DispatchKey::CompositeImplicitAutograd,
        DispatchKey::CompositeExplicitAutogradNonFunctional})
    if (op.hasKernelForDispatchKey(key)) return true;
  return false;
}

const About& about(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  std::lock_guard<std::recursive_mutex> lock(mu);
  auto it = known_operators.find(&schema);
  if (it != known_operators.end()) return it->second;
  std::string n = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  bool waits = host_waits.count(n);
  About a{n,
          bool(may_mix.count(n)),
          waits,
          !no_kernel.count(n),
          bool(products.count(n)),
          bool(looks_up.count(n)),
          bool(writes_rows.count(n)),
          bool(overwrites.count(n)),
          !waits && has_shapes(op)};
  return known_operators.emplace(&schema, std::move(a)).first->second;
}

void each_tensor(const c10::IValue& v, const std::function<void(const at::Tensor&)>& see) {
  if (v.isTensor()) {
    if (v.toTensor().defined()) see(v.toTensor());
  } else if (v.isTensorList()) {
    for (const at::Tensor& t : v.toTensorVector()) see(t);
  } else if (v.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& t : v.toOptionalTensorVector())
      if (t && t->defined()) see(*t);
  }
}

using Change = std::function<at::Tensor(const at::Tensor&)>;
c10::IValue each_changed(const c10::IValue& v, const Change& change) {
  if (v.isTensor()) return v.toTensor().defined() ? c10::IValue(change(v.toTensor())) : v;
  if (v.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : v.toTensorVector()) list.push_back(change(t));
    return list;
  }
  if (v.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& t : v.toOptionalTensorVector())
      list.push_back(t && t->defined() ? std::optional<at::Tensor>(change(*t)) : t);
    return list;
  }
  return v;
}

// cuBLAS adds up halves in 32 bits and rounds once. So does the CPU's kernel, but on a processor without such
// products it takes five times as long as that for floats does.
const std::set<std::string> in_32_bits = {"aten::mm.out", "aten::addmm.out", "aten::bmm.out", "aten::baddbmm.out"};
constexpr int64_t few_rows = 4;  // of fewer, rewriting the weights takes longer

// Whether the operands that end the stack are halves of so many rows.
bool is_worth_widening(const torch::jit::Stack& stack, size_t begin) {
  for (size_t i = begin; i < stack.size(); ++i) {
    if (!stack[i].isTensor() || stack[i].toTensor().dim() < 2) continue;  // a bias
    const at::Tensor& t = stack[i].toTensor();
    const bool half = t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16;
    return half && t.numel() >= few_rows * t.size(-1);
  }
  return false;
}

// The operator by the CPU's kernel. What is written to is the last operand.
void run_on_host(const c10::OperatorHandle& op, const std::string& name, torch::jit::Stack* stack) {
  const size_t begin = stack->size() - op.schema().arguments().size();
  const bool widened = in_32_bits.count(name) && is_worth_widening(*stack, begin);
  const at::Tensor out = widened ? stack->back().toTensor() : at::Tensor();
  if (widened)
    for (size_t i = begin; i < stack->size(); ++i)
      (*stack)[i] = each_changed((*stack)[i], [](const at::Tensor& t) { return t.to(at::kFloat); });
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  if (widened) stack->back() = out.copy_(stack->back().toTensor());
}

struct Record {
  at::Tensor card, near;
  bool write, is_out;
};

// cuBLAS' workspace, one a stream, from torch's allocator, kept (aten/src/ATen/cuda/CublasHandlePool.cpp: 8
// MiB and 128 KiB, 32 MiB on capability 9.0).
size_t workspace_bytes = SIZE_MAX;  // by capability
Block* workspaces[kStreams];

void require_workspace(int s) {
  if (workspaces[s] || !workspace_bytes) return;
  int device = card_of(s);
  size_t bytes = workspace_bytes != SIZE_MAX ? workspace_bytes
                 : card[device].major == 9   ? size_t(32) << 20
                                             : (size_t(8) << 20) + (128 << 10);
  DeviceHere h(device);
  std::lock_guard<std::recursive_mutex> lock(mu);
  workspaces[s] = take(device, bytes);
  ++counts["cublas workspaces"];
}

// One call of an operator.
struct Call {
  const c10::OperatorHandle& op;
  torch::jit::Stack* stack;
  const About& what;
  size_t begin;
  bool dryly = false, boolean_index = false, host_index = false, asks_for_card = false;
  int device = -1, s = -1;
  double read = 0, written = 0;
  Shared shared;
  std::vector<Record> records;
  torch::jit::Stack original;

  Call(const c10::OperatorHandle& o, torch::jit::Stack* st)
      : op(o), stack(st), what(about(o)), begin(st->size() - o.schema().arguments().size()) {
    look();
  }

  size_t arguments() const { return op.schema().arguments().size(); }

  void look() {
    for (size_t i = begin; i < stack->size(); ++i) {
      const auto& v = (*stack)[i];
      if (v.isDevice() && v.toDevice().is_cuda()) {
        asks_for_card = true;
        if (device < 0) device = v.toDevice().has_index() ? v.toDevice().index() : current_device;
      } else {
        each_tensor(v, [&](const at::Tensor& t) { see(t, op.schema().arguments()[i - begin]); });
      }
    }
    if (device < 0) device = current_device;
  }

  void see(const at::Tensor& t, const c10::Argument& argument) {
    const bool index = argument.name() == "indices" && what.mixes;
    if (!t.is_cuda()) {
      host_index |= index;
      return;
    }
    const int d = t.device().index();
    if (device < 0) device = d;
    TORCH_CHECK(d == device || what.mixes,
                "Expected all tensors to be on the same device, but found at least two devices, cuda:",
                device, " and cuda:", d, "! (pretend card, ", what.name, ")");
    // Reading by booleans asks for nonzero() before it comes here; writing one number by them is a fill.
    boolean_index |= argument.name() == "indices" && what.writes_rows &&
                     (t.scalar_type() == at::kBool || t.scalar_type() == at::kByte) && !writes_one_number();
  }

  // As canDispatchToMaskedFill (aten/src/ATen/native/TensorAdvancedIndexing.h).
  bool writes_one_number() const {
    const auto& values = stack->at(begin + 2);
    return values.isTensor() && !values.toTensor().is_cuda() && values.toTensor().numel() == 1;
  }

  int64_t largest() const {
    int64_t found = 0;
    for (size_t i = begin; i < stack->size(); ++i)
      each_tensor((*stack)[i], [&](const at::Tensor& t) {
        if (t.is_cuda()) found = std::max(found, t.numel());
      });
    return found;
  }

  void start() {
    s = here(device);
    if (what.waits || boolean_index) refuse_in_capture(what.name + ", for which the host waits", s);
    if (host_index) refuse_in_capture(what.name + " with indices of the host, an unpinned copy", s);
    if (what.is_product) require_workspace(s);
    if (what.launches) launch_on(s, what.name);
    if (host_index) {
      host_waits_for(s);
      count_wait("indices from the host");
    }
  }

  at::Tensor bring(const at::Tensor& t, const c10::Argument& argument) {
    if (!t.is_cuda()) return bring_from_host(t, argument);
    const bool write = argument.alias_info() && argument.alias_info()->isWrite();
    touch(t, s, write, c10::str(what.name, "(", argument.name(), " ", t.sizes(), ")"));
    if (write && captured(s)) save_for_capture(t);
    weigh(t, argument, write);
    auto near = dryly ? meta_alias(t, shared) : host_alias(t, shared);
    records.push_back({t, near, write, argument.is_out()});
    return near;
  }

  at::Tensor bring_from_host(const at::Tensor& t, const c10::Argument& argument) {
    const bool index = argument.name() == "indices" || argument.name() == "index";
    TORCH_CHECK(
        !t.device().is_cpu() || (t.dim() == 0 && !index) || (what.mixes && argument.name() == "indices"),
        "Expected all tensors to be on the same device, but got ", argument.name(), " is on ", t.device(),
        ", different from other tensors on cuda:", device,
        " (pretend card, when checking argument in method ", what.name, ")");
    return dryly ? at::empty_strided(t.sizes(), t.strides(), t.options().device(c10::kMeta)) : t;
  }

  void weigh(const at::Tensor& t, const c10::Argument& argument, bool write) {
    const bool table = records.empty() && (what.looks_up || what.writes_rows);
    if (table || (what.writes_rows && write)) return;
    const double bytes = moved_bytes(t);
    const bool index = argument.name() == "indices" || argument.name() == "index";
    if (write) written += bytes;
    if (!write || !(argument.is_out() || what.overwrites)) read += bytes;
    if (what.writes_rows && !index) written += bytes;
  }

  void bring_all() {
    if (captured(s)) original.assign(stack->begin() + static_cast<int64_t>(begin), stack->end());
    for (size_t i = 0; i < arguments(); ++i) {
      auto& v = (*stack)[begin + i];
      const auto& argument = op.schema().arguments()[i];
      if (v.isDevice() && v.toDevice().is_cuda())
        v = c10::Device(dryly ? c10::kMeta : c10::kCPU);
      else
        v = each_changed(v, [&](const at::Tensor& t) { return bring(t, argument); });
    }
  }

  // Operands that were written to and have another size now.
  void resize_written() {
    for (auto& r : records) {
      if (!r.write || r.near.sizes() == r.card.sizes()) continue;
      resize_card_(r.card, r.near.sizes(), std::nullopt);
      size_t bytes =
          at::detail::computeStorageNbytes(r.near.sizes(), r.near.strides(), r.near.dtype().itemsize());
      r.card.unsafeGetTensorImpl()->set_sizes_and_strides(r.near.sizes(), r.near.strides());
      if (bytes && !dryly) memcpy(r.card.mutable_data_ptr(), r.near.const_data_ptr(), bytes);
    }
  }

  // Nothing was computed: small results are zeros, as those in new memory are, so that a program can look at
  // them.
  void clear_written() {
    for (auto& r : records) {
      if (!r.is_out || r.card.numel() > 16 * dry_above || !r.card.is_non_overlapping_and_dense()) continue;
      memset(r.card.mutable_data_ptr(), 0, r.card.nbytes());
    }
  }

  bool is_view(const at::Tensor& out, at::Tensor& of) const {
    if (!out.has_storage()) return false;
    for (auto& [impl, storage] : shared)
      if (out.storage().unsafeGetStorageImpl() == storage.unsafeGetStorageImpl())
        for (auto& r : records)
          if (r.card.storage().unsafeGetStorageImpl() == impl) {
            of = card_view(r.card.storage(), out);
            return true;
          }
    return false;
  }

  // What comes out, on the card: an operand, a view of one, or new memory. `fresh` tells which.
  at::Tensor back(const at::Tensor& out, bool& fresh) {
    fresh = false;
    if (!(dryly ? out.is_meta() : out.device().is_cpu())) return out;
    for (auto& r : records)
      if (r.near.unsafeGetTensorImpl() == out.unsafeGetTensorImpl()) return r.card;
    if (records.empty() && !asks_for_card) return out;
    at::Tensor view;
    if (is_view(out, view)) return view;
    fresh = true;
    auto w = dryly ? followed(out) : to_card(out, device);
    touch(w, s, true, what.name);
    const double bytes = moved_bytes(w);
    written += bytes;
    if (what.looks_up) read += bytes;
    return w;
  }

  at::Tensor followed(const at::Tensor& out) {
    auto w = empty_on(device, out.sizes(), out.strides(), out.scalar_type());
    if (w.numel() && w.numel() <= 16 * dry_above) memset(w.mutable_data_ptr(), 0, w.storage().nbytes());
    return w;
  }

  // Results take the operands' place on the stack. Returns those in new memory, with the place among the
  // results.
  std::vector<std::pair<size_t, at::Tensor>> bring_back() {
    std::vector<std::pair<size_t, at::Tensor>> made;
    size_t n = 0;
    for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i)
      (*stack)[i] = each_changed((*stack)[i], [&](const at::Tensor& t) {
        bool fresh;
        auto w = back(t, fresh);
        if (fresh) made.emplace_back(n, w);
        ++n;
        return w;
      });
    return made;
  }

  void finish() {
    if (what.waits || boolean_index) {
      host_waits_for(s);
      count_wait(what.name + (boolean_index ? " by booleans" : ""));
    }
    resize_written();
    if (dryly) clear_written();
    auto made = bring_back();
    if (what.launches) account(s, read, written);
    if (captured(s) && what.launches) add_node(s, node(made));
  }

  Node node(const std::vector<std::pair<size_t, at::Tensor>>& made) {
    Node n{what.name, {}, read, written, nullptr, nullptr};
    for (auto& r : records) n.refs.push_back(ref_of(r.card, r.write));
    for (auto& [place, t] : made) n.refs.push_back(ref_of(t, true));
    if (!dryly) n.again = again(made);
    return n;
  }

  // The operator once more, on the same places, with the scalars it had.
  std::function<void(int)> again(const std::vector<std::pair<size_t, at::Tensor>>& made) {
    torch::jit::Stack places;
    for (auto& v : original)
      places.push_back(v.isDevice() ? c10::IValue(c10::Device(c10::kCPU))
                                    : each_changed(v, [](const at::Tensor& t) {
                                        return t.is_cuda() ? raw_alias(t) : t.clone();
                                      }));
    std::vector<std::pair<size_t, at::Tensor>> to;
    for (auto& [place, t] : made) to.emplace_back(place, raw_alias(t));
    return [op = op, name = what.name, places, to](int) {
      c10::InferenceMode quiet(true);
      torch::jit::Stack st = places;
      run_on_host(op, name, &st);
      std::vector<at::Tensor> found;
      for (auto& v : st) each_tensor(v, [&](const at::Tensor& t) { found.push_back(t); });
      for (auto& [place, t] : to) t.copy_(found.at(place));
    };
  }

  void run(bool only_followed) {
    dryly = only_followed;
    bring_all();
    if (dryly)
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
    else
      run_on_host(op, what.name, stack);
    finish();
  }

  // The meta kernel may be missing after all: back to where it began.
  bool follows() {
    torch::jit::Stack saved(stack->end() - static_cast<int64_t>(arguments()), stack->end());
    try {
      run(true);
      return true;
    } catch (const c10::NotImplementedError&) {
      stack->resize(begin);
      stack->insert(stack->end(), saved.begin(), saved.end());
      records.clear();
      shared.clear();
      read = written = 0;
      return false;
    }
  }
};

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  Call call(op, stack);
  DeviceHere h(call.device);
  call.start();
  if (dry && call.what.followed && call.largest() > dry_above && call.follows()) return;
  call.run(false);
}

}  // namespace
