#include "backend/program.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "backend/buffer.hpp"
#include "backend/weight_image.hpp"

namespace baton::backend {

namespace {

constexpr uint32_t kHeadDimMax = 256;
constexpr size_t kMatrixAlign = 64;  // a cache line, and the widest vector

size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

tl::unexpected<Error> invalid(std::string message) {
    return fail(ErrorCode::kInvalidArgument, std::move(message));
}

Expected<std::vector<float>> read_vector(const tensor::TensorView& t, size_t n, const char* what) {
    if (t.shape[0] != 1 || t.shape[1] != n || n % tensor::block_shape(t.dtype).elements != 0 ||
        t.bytes.size() != t.row_bytes()) {
        return invalid(std::string(what) + " " + t.name + " has not the " + std::to_string(n) +
                       " elements the plan needs");
    }
    std::vector<float> out(n);
    tensor::dequantize_row(t.dtype, t.row(0), out.data(), n);
    return out;
}

/// Gives `weight` the next place in the image.
Expected<PackedMatrix> place(const tensor::TensorView& weight, Program& program) {
    BATON_TRY_ASSIGN(PackedMatrix m, packed_form(weight));
    m.offset = program.image_bytes;
    program.image_bytes += round_up(m.bytes(), kMatrixAlign);
    program.parts.push_back({&weight, m});
    return m;
}

/// Lowers the steps of one layer, one after another.
class LayerLowering {
  public:
    LayerLowering(const ModelShape& shape, Program& program) : shape_(shape), program_(program) {}

    Expected<void> operator()(const RmsNorm& s) {
        BATON_TRY_ASSIGN(NormOp op, norm(s));
        rows().push_back(std::move(op));
        return {};
    }
    Expected<NormOp> norm(const RmsNorm& s) const {
        if (s.in >= Slot::kCount || s.out >= Slot::kCount) return invalid("norm names no slot");
        const size_t width = slot_width(shape_, s.in);
        if (s.groups == 0 || width % s.groups != 0 || width != slot_width(shape_, s.out))
            return invalid("norm " + s.weight.name + " does not fit its slots");
        BATON_TRY_ASSIGN(auto weight, read_vector(s.weight, width / s.groups, "norm weight"));
        return NormOp{s.in, s.out, std::move(weight), s.eps, s.groups};
    }
    Expected<void> operator()(const MatMul& s) {
        if (s.in >= Slot::kCount || s.out >= Slot::kCount || s.in == s.out)
            return invalid("matrix product " + s.weight.name + " names no two slots");
        if (s.weight.shape[0] != slot_width(shape_, s.out) ||
            s.weight.shape[1] != slot_width(shape_, s.in))
            return invalid("matrix " + s.weight.name + " does not fit its slots");
        Product p;
        p.out = s.out;
        p.add = s.add;
        if (s.bias) {
            BATON_TRY_ASSIGN(p.bias, read_vector(s.bias, s.weight.shape[0], "bias"));
        }
        BATON_TRY_ASSIGN(p.weight, place(s.weight, program_));
        stage_for(s).products.push_back(std::move(p));
        return {};
    }
    Expected<void> operator()(const ApplyRope&) { return row(RopeOp{}); }
    Expected<void> operator()(const KvAppend&) {
        ++appends_;
        return row(AppendOp{});
    }
    Expected<void> operator()(const Attention&) {
        if (appends_ == 0)
            return invalid("a layer attends before it has appended its keys and values");
        stages_.emplace_back(AttentionStage{});
        return {};
    }
    Expected<void> operator()(const SwiGlu&) {
        auto* last = stages_.empty() ? nullptr : std::get_if<ProductStage>(&stages_.back());
        if (last != nullptr && last->products.size() == 2 && last->products[0].out == Slot::kGate &&
            last->products[1].out == Slot::kUp && last->in != Slot::kAct && !last->swiglu &&
            !last->products[0].add && !last->products[1].add) {
            last->swiglu = true;
            return {};
        }
        return row(SwiGluOp{});
    }
    Expected<std::vector<Stage>> finish() {
        if (appends_ != 1) return invalid("a layer must append its keys and values once");
        for (size_t i = 0; i + 1 < stages_.size(); ++i) link(stages_[i], stages_[i + 1]);
        return std::move(stages_);
    }

  private:
    Expected<void> row(RowOp op) {
        rows().push_back(std::move(op));
        return {};
    }
    std::vector<RowOp>& rows() {
        if (stages_.empty() || !std::holds_alternative<RowStage>(stages_.back()))
            stages_.emplace_back(RowStage{});
        return std::get<RowStage>(stages_.back()).ops;
    }
    /// Lets a gate-and-up stage hand its result over as int8 where the next stage is all that reads
    /// it.
    void link(Stage& first, Stage& second) const {
        auto* from = std::get_if<ProductStage>(&first);
        auto* to = std::get_if<ProductStage>(&second);
        if (from == nullptr || to == nullptr || !from->swiglu || to->in != Slot::kAct ||
            !to->before.empty())
            return;
        for (const Product& p : to->products)
            if (p.weight.kind >= Packed::kBF16) return;
        size_t readers = 0;
        for (const Stage& s : stages_) {
            const auto* products = std::get_if<ProductStage>(&s);
            if (products != nullptr && products->in == Slot::kAct) ++readers;
            if (reads_act(s)) return;
        }
        if (readers == 1) from->quantize_act = to->in_ready = true;
    }
    static bool reads_act(const Stage& stage) {
        const std::vector<RowOp>* ops = nullptr;
        if (const auto* rows = std::get_if<RowStage>(&stage)) ops = &rows->ops;
        if (const auto* products = std::get_if<ProductStage>(&stage)) ops = &products->before;
        if (ops == nullptr) return false;
        for (const RowOp& op : *ops) {
            const auto* norm = std::get_if<NormOp>(&op);
            if (norm != nullptr && norm->in == Slot::kAct) return true;
        }
        return false;
    }
    /// The stage a product joins: the last one if it reads the same slot and neither writes what
    /// the other uses.
    ProductStage& stage_for(const MatMul& s) {
        if (!stages_.empty()) {
            if (auto* last = std::get_if<ProductStage>(&stages_.back())) {
                bool joins = last->in == s.in && !last->swiglu;
                for (const auto& p : last->products)
                    joins = joins && p.out != s.out && p.out != s.in;
                if (joins) return *last;
            } else if (auto* before = std::get_if<RowStage>(&stages_.back())) {
                ProductStage next;
                next.before = std::move(before->ops);
                next.in = s.in;
                stages_.back() = std::move(next);
                return std::get<ProductStage>(stages_.back());
            }
        }
        ProductStage next;
        next.in = s.in;
        stages_.emplace_back(std::move(next));
        return std::get<ProductStage>(stages_.back());
    }

    const ModelShape& shape_;
    Program& program_;
    std::vector<Stage> stages_;
    uint32_t appends_ = 0;
};

/// The slots that stages read as they found them. Stages are taken in order.
class LiveSlots {
  public:
    /// False for an operation that needs more of a row than its slots.
    [[nodiscard]] bool take(const Stage& stage) {
        if (const auto* rows = std::get_if<RowStage>(&stage))
            return std::ranges::all_of(rows->ops, [this](const RowOp& op) { return take(op); });
        const auto* products = std::get_if<ProductStage>(&stage);
        if (products == nullptr) return false;
        for (const RowOp& op : products->before)
            if (!take(op)) return false;
        read(products->in);
        for (const Product& p : products->products) {
            if (p.add) read(p.out);
            write(products->swiglu ? Slot::kAct : p.out);
        }
        return true;
    }
    void read(Slot slot) {
        const auto i = static_cast<size_t>(slot);
        read_[i] = read_[i] || !written_[i];
    }
    [[nodiscard]] std::vector<Slot> reads() const {
        std::vector<Slot> out;
        for (size_t i = 0; i < kSlots; ++i)
            if (read_[i]) out.push_back(static_cast<Slot>(i));
        return out;
    }

  private:
    static constexpr auto kSlots = static_cast<size_t>(Slot::kCount);
    bool take(const RowOp& op) {
        if (const auto* norm = std::get_if<NormOp>(&op)) {
            read(norm->in);
            write(norm->out);
            return true;
        }
        if (!std::holds_alternative<SwiGluOp>(op)) return false;
        read(Slot::kGate);
        read(Slot::kUp);
        write(Slot::kAct);
        return true;
    }
    void write(Slot slot) { written_[static_cast<size_t>(slot)] = true; }

    std::array<bool, kSlots> read_{}, written_{};
};

std::optional<Tail> tail_of(const std::vector<Stage>& stages, const NormOp& final_norm) {
    size_t attention = stages.size();
    for (size_t i = 0; i < stages.size(); ++i)
        if (std::holds_alternative<AttentionStage>(stages[i])) attention = i;
    if (attention == stages.size()) return std::nullopt;
    LiveSlots live;
    for (size_t i = attention + 1; i < stages.size(); ++i)
        if (!live.take(stages[i])) return std::nullopt;
    live.read(final_norm.in);
    return Tail{attention, live.reads()};
}

}  // namespace

size_t slot_width(const ModelShape& s, Slot slot) {
    switch (slot) {
        case Slot::kHidden:
        case Slot::kNorm:
            return s.hidden;
        case Slot::kQ:
        case Slot::kAttn:
            return size_t{s.heads} * s.head_dim;
        case Slot::kK:
        case Slot::kV:
            return size_t{s.kv_heads} * s.head_dim;
        case Slot::kGate:
        case Slot::kUp:
        case Slot::kAct:
            return s.ffn;
        case Slot::kCount:
            break;
    }
    return 0;
}

Expected<void> check_shape(const ModelShape& s) {
    if (s.layers == 0 || s.hidden == 0 || s.heads == 0 || s.kv_heads == 0 || s.head_dim == 0 ||
        s.ffn == 0 || s.vocab == 0 || s.context == 0)
        return invalid("a size of the model is 0");
    if (s.heads % s.kv_heads != 0) return invalid("kv heads do not divide heads");
    if (s.head_dim % 2 != 0 || s.head_dim > kHeadDimMax)
        return fail(ErrorCode::kUnsupported, "head dimension " + std::to_string(s.head_dim) +
                                                 " is not an even number up to " +
                                                 std::to_string(kHeadDimMax));
    return {};
}

void bind_weights(Program& program, const std::byte* image) {
    for (auto& stages : program.layers)
        for (Stage& stage : stages)
            if (auto* products = std::get_if<ProductStage>(&stage))
                for (Product& p : products->products) p.weight.data = image + p.weight.offset;
    program.head.data = image + program.head.offset;
}

Expected<Program> lower(const Plan& plan) {
    const ModelShape& s = plan.shape;
    BATON_TRY(check_shape(s));
    if (plan.rope.inv_freq.size() != s.head_dim / 2)
        return invalid("rope has the wrong number of frequencies");
    if (plan.layers.size() != s.layers)
        return invalid("the plan's number of layers is not its shape's");
    if (plan.embedding.shape != std::array<size_t, 2>{s.vocab, s.hidden} ||
        s.hidden % tensor::block_shape(plan.embedding.dtype).elements != 0 ||
        plan.embedding.bytes.size() != plan.embedding.row_bytes() * s.vocab)
        return invalid("the embedding does not fit vocabulary and hidden size");
    if (plan.head.shape != plan.embedding.shape)
        return invalid("the head does not fit vocabulary and hidden size");
    if (plan.final_norm.in != Slot::kHidden || plan.final_norm.out != Slot::kNorm)
        return invalid("the final norm must read the hidden rows");
    Program program;
    program.shape = s;
    program.image_bytes = kImageHeaderBytes;
    for (const auto& steps : plan.layers) {
        LayerLowering layer(s, program);
        for (const Step& step : steps) BATON_TRY(std::visit(layer, step));
        BATON_TRY_ASSIGN(auto stages, layer.finish());
        program.layers.push_back(std::move(stages));
    }
    BATON_TRY_ASSIGN(program.final_norm, LayerLowering(s, program).norm(plan.final_norm));
    program.tail = tail_of(program.layers.back(), program.final_norm);
    BATON_TRY_ASSIGN(program.head, place(plan.head, program));
    // Whole huge pages, so that the last matrix lies on one too.
    const bool large = program.image_bytes >= Buffer::kHugePageBytes;
    program.image_bytes =
        round_up(program.image_bytes, large ? Buffer::kHugePageBytes : kImageHeaderBytes);
    return program;
}

}  // namespace baton::backend
