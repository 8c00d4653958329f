#include "backend/cuda/step_input.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace baton::backend::cuda {

namespace {

constexpr uint32_t kPromptBuckets[] = {16, 32, 48, 64, 96, 128, 192, 256, 384, 512};  // rows of a short prompt's graph

tl::unexpected<Error> invalid(std::string message) {
    return fail(ErrorCode::kInvalidArgument, std::move(message));
}

uint32_t blocks_of(uint32_t tokens, uint32_t block_tokens) {
    return (tokens + block_tokens - 1) / block_tokens;
}

/// Room for any step: every row a sequence with logits.
uint32_t array_values(const StepLimits& limits) {
    StepShape widest;
    widest.rows = std::max(limits.tokens_max, limits.slices_max);
    widest.prefill = limits.slices_max;
    widest.logits = limits.slices_max;
    widest.gather = true;
    widest.words = limits.slices_max;
    return array_offsets(widest).total;
}

size_t table_values(const StepLimits& limits) {
    return size_t{limits.slices_max} * blocks_of(limits.positions_max, limits.block_tokens);
}

}  // namespace

std::vector<uint32_t> batch_buckets(uint32_t slices_max) {
    std::vector<uint32_t> buckets;
    for (const uint32_t b : {1u, 2u, 4u, 8u, 16u, 24u, 32u, 48u, 64u, 96u, 128u, 192u, 256u, 384u, 512u, 768u})
        if (b < slices_max) buckets.push_back(b);
    buckets.push_back(slices_max);
    return buckets;
}

size_t StepInput::bytes(const StepLimits& limits) {
    return 2 * sizeof(int32_t) * (array_values(limits) + table_values(limits));
}

Expected<StepInput> StepInput::make(const StepLimits& limits) {
    StepInput input;
    input.limits_ = limits;
    input.stride_ = blocks_of(limits.positions_max, limits.block_tokens);
    input.array_values_ = array_values(limits);
    for (uint32_t b = 0; b < 2; ++b) {
        BATON_TRY_ASSIGN(input.host_[b],
                         PinnedBuffer::make(size_t{input.array_values_} * sizeof(int32_t) + table_values(limits) * sizeof(int2)));
        BATON_TRY_ASSIGN(input.device_[b], DeviceBuffer::make(size_t{input.array_values_} * sizeof(int32_t), "the steps' input"));
        BATON_TRY_ASSIGN(input.table_[b], DeviceBuffer::make(table_values(limits) * sizeof(int32_t), "the block tables"));
        BATON_CUDA_TRY(cudaMemset(input.table_[b].data(), 0, input.table_[b].size()), "the block tables");
        input.mirror_[b].assign(table_values(limits), 0);
    }
    input.buckets_ = batch_buckets(limits.slices_max);
    input.first_row_.reserve(limits.slices_max);
    input.arrangement_.order.reserve(limits.slices_max);
    input.written_.assign(limits.blocks, 0);
    input.states_.assign(limits.slices_max, 0);
    return input;
}

Expected<void> StepInput::check(const Batch& batch) {
    if (batch.slices.empty() || batch.slices.size() > limits_.slices_max)
        return invalid("a batch must have 1.." + std::to_string(limits_.slices_max) + " slices");
    uint64_t rows = 0;
    for (size_t i = 0; i < batch.slices.size(); ++i) {
        const Slice& s = batch.slices[i];
        BATON_TRY(check_slice(s, i, rows));
        if (rows + s.tokens > batch.tokens.size()) return invalid("the slices do not cover the tokens of the batch");
        if (s.pending == 0) {
            for (const TokenId t : batch.tokens.subspan(rows, s.tokens))
                if (t < 0 || static_cast<uint32_t>(t) >= limits_.vocab)
                    return invalid("token id " + std::to_string(t) + " is outside the vocabulary");
        }
        rows += s.tokens;
    }
    if (rows != batch.tokens.size()) return invalid("the slices do not cover the tokens of the batch");
    return check_writers(batch);
}

Expected<void> StepInput::check_slice(const Slice& s, size_t index, uint64_t rows_before) const {
    const auto where = [&] { return "slice " + std::to_string(index); };
    const uint64_t end = uint64_t{s.position} + s.tokens;
    if (s.tokens == 0 || rows_before + s.tokens > limits_.tokens_max) return invalid(where() + " has no tokens or too many");
    if (end > limits_.positions_max) return invalid(where() + " goes beyond the context of the model");
    if (s.blocks.size() < blocks_of(static_cast<uint32_t>(end), limits_.block_tokens)) return invalid(where() + " has too few blocks");
    BlockId last = 0;
    for (const BlockId block : s.blocks.first(blocks_of(static_cast<uint32_t>(end), limits_.block_tokens))) last = std::max(last, block);
    if (last >= limits_.blocks) return invalid(where() + " names a block outside the pool");
    if (s.state >= limits_.slices_max) return invalid(where() + " names a state row that is not there");
    if (s.logits && s.sequence == nullptr) return invalid(where() + " wants logits but names no sequence");
    if (s.pending > 1 || (s.pending == 1 && s.tokens != 1)) return invalid(where() + " waits for more than its one token");
    return {};
}

/// A block that one slice writes in this step may be neither written nor read by another (the latter is looked at where
/// prompts are computed, when whole blocks change); no two slices share a state row.
Expected<void> StepInput::check_writers(const Batch& batch) {
    ++step_;
    const uint32_t bt = limits_.block_tokens;
    bool prompts = false;
    for (const Slice& s : batch.slices) {
        prompts = prompts || s.tokens > 1;
        if (states_[s.state] == step_) return invalid("two slices use one state row");
        states_[s.state] = step_;
        for (uint32_t b = s.position / bt; b <= (s.position + s.tokens - 1) / bt; ++b) {
            if (written_[s.blocks[b]] == step_) return invalid("two slices write one block");
            written_[s.blocks[b]] = step_;
        }
    }
    if (!prompts) return {};
    for (const Slice& s : batch.slices)
        for (uint32_t b = 0; b < s.position / bt; ++b)
            if (written_[s.blocks[b]] == step_) return invalid("a slice reads a block that one writes");
    return {};
}

const Arrangement& StepInput::arrange(const Batch& batch, uint32_t buffer) {
    Arrangement& a = arrangement_;
    a.order.clear();
    a.shape = {};
    a.shape.buffer = buffer;
    a.kv_max = 0;
    first_row_.clear();
    uint32_t row = 0;
    for (uint32_t i = 0; i < batch.slices.size(); ++i) {
        const Slice& s = batch.slices[i];
        first_row_.push_back(row);
        row += s.tokens;
        a.shape.words += s.progress != nullptr ? 1 : 0;
        a.shape.logits += s.logits ? 1 : 0;
        if (s.tokens > 1 || limits_.deterministic) continue;
        a.order.push_back(i);
        ++a.shape.decode;
        a.kv_max = std::max(a.kv_max, s.position + 1);
    }
    for (uint32_t i = 0; i < batch.slices.size(); ++i) {
        const Slice& s = batch.slices[i];
        if (s.tokens == 1 && !limits_.deterministic) continue;
        a.order.push_back(i);
        ++a.shape.prefill;
        a.shape.prefill_rows_max = std::max(a.shape.prefill_rows_max, s.tokens);
    }
    a.shape.rows = row;
    pad_to_bucket(batch);
    return a;
}

/// Steps that come again and again get one of few shapes: decode rows alone, and one prompt that is short (it would be bound
/// by the launches; where more is computed, they are hidden behind it).
void StepInput::pad_to_bucket(const Batch& batch) {
    Arrangement& a = arrangement_;
    const bool decode = a.shape.words == 0 && a.shape.logits == a.shape.rows && a.shape.rows == batch.slices.size();
    const auto up = [](std::span<const uint32_t> buckets, uint32_t n) { return *std::lower_bound(buckets.begin(), buckets.end(), n); };
    a.graph = decode;
    a.shape.gather = !decode;
    if (decode) {
        a.shape.rows = a.shape.logits = up(buckets_, a.shape.rows);
        (limits_.deterministic ? a.shape.prefill : a.shape.decode) = a.shape.rows;
    } else if (batch.slices.size() == 1 && a.shape.prefill == 1 && a.shape.logits == 1 && !limits_.deterministic &&
               a.shape.rows <= kPromptBuckets[std::size(kPromptBuckets) - 1] && up(kPromptBuckets, a.shape.rows) <= limits_.tokens_max) {
        a.graph = true;
        a.shape.rows = a.shape.prefill_rows_max = up(kPromptBuckets, a.shape.rows);
        a.shape.words = 1;
    }
}

int2* StepInput::patches(uint32_t buffer) const {
    return reinterpret_cast<int2*>(host_[buffer].as<int32_t>() + array_values_);
}

void StepInput::patch_table(uint32_t buffer, uint32_t row, const Slice& slice) {
    const uint32_t used = blocks_of(slice.position + slice.tokens, limits_.block_tokens);
    const size_t first = size_t{row} * stride_;
    int32_t* mirror = mirror_[buffer].data() + first;
    if (std::memcmp(mirror, slice.blocks.data(), used * sizeof(int32_t)) == 0) return;
    int2* out = patches(buffer);
    for (uint32_t i = 0; i < used; ++i) {
        const auto block = static_cast<int32_t>(slice.blocks[i]);
        if (mirror[i] == block) continue;
        mirror[i] = block;
        out[patch_count_++] = {static_cast<int>(first + i), block};
    }
}

void StepInput::fill_rows(const Batch& batch, const Arrangement& step, int32_t* out) {
    const StepShape& shape = step.shape;
    const ArrayOffsets at = array_offsets(shape);
    const uint32_t bt = limits_.block_tokens;
    uint32_t row = 0, sequence = 0;
    std::vector<uint32_t>& last_row = first_row_;  // the row of a slice's last token, once the slice is laid out
    for (const uint32_t i : step.order) {
        const Slice& s = batch.slices[i];
        if (shape.prefill > 0 && sequence >= shape.decode)
            out[at.row_begin + sequence - shape.decode] = static_cast<int32_t>(row - shape.decode);
        for (uint32_t t = 0; t < s.tokens; ++t, ++row) {
            const uint32_t position = s.position + t;
            out[at.tokens + row] = s.pending != 0 ? -1 : batch.tokens[first_row_[i] + t];
            out[at.positions + row] = static_cast<int32_t>(position);
            out[at.slots + row] = static_cast<int32_t>(s.blocks[position / bt] * bt + position % bt);
            out[at.states + row] = static_cast<int32_t>(s.state);
        }
        out[at.kv_len + sequence] = static_cast<int32_t>(s.position + s.tokens);
        patch_table(shape.buffer, sequence, s);
        last_row[i] = row - 1;
        ++sequence;
    }
    if (shape.gather) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < batch.slices.size(); ++i)
            if (batch.slices[i].logits) out[at.logit_rows + n++] = static_cast<int32_t>(last_row[i]);
    }
    pad(shape, row, sequence, out);
}

/// Fills the rest of a step with rows that are computed and written nowhere.
void StepInput::pad(const StepShape& shape, uint32_t rows, uint32_t sequences, int32_t* out) const {
    const ArrayOffsets at = array_offsets(shape);
    for (uint32_t row = rows; row < shape.rows; ++row) {
        out[at.tokens + row] = 0;
        out[at.positions + row] = 0;
        out[at.slots + row] = -1;
        out[at.states + row] = 0;
    }
    for (uint32_t s = sequences; s < shape.sequences(); ++s) {
        out[at.kv_len + s] = 0;
        if (shape.prefill > 0) out[at.row_begin + s - shape.decode] = static_cast<int32_t>(rows + (s - sequences) - shape.decode);
    }
    // A padding sequence has one row; what is left of a padded prompt belongs to none.
    if (shape.prefill > 0) out[at.row_begin + shape.prefill] = static_cast<int32_t>(rows + (shape.sequences() - sequences) - shape.decode);
}

cudaError_t StepInput::upload(cudaStream_t stream, const Batch& batch, const Arrangement& step, std::span<const ProgressWord> words) {
    const uint32_t buffer = step.shape.buffer;
    auto* host = host_[buffer].as<int32_t>();
    patch_count_ = 0;
    fill_rows(batch, step, host);
    auto* progress = reinterpret_cast<ProgressWord*>(host + array_offsets(step.shape).words);
    for (uint32_t i = 0; i < step.shape.words; ++i) progress[i] = i < words.size() ? words[i] : ProgressWord{nullptr, 0};
    return upload_rows(stream, host, device_[buffer].as<int32_t>(), array_offsets(step.shape).total, patches(buffer), patch_count_,
                       table_[buffer].as<int32_t>());
}

cudaError_t StepInput::upload_padding(cudaStream_t stream, const StepShape& shape, uint32_t context) {
    auto* host = host_[shape.buffer].as<int32_t>();
    pad(shape, 0, 0, host);
    patch_count_ = 0;
    const ArrayOffsets at = array_offsets(shape);
    const uint32_t used = blocks_of(context, limits_.block_tokens);
    for (uint32_t s = 0; s < shape.decode && context > 0; ++s) {
        host[at.kv_len + s] = static_cast<int32_t>(context);
        host[at.positions + s] = static_cast<int32_t>(context - 1);
        for (uint32_t i = 0; i < used; ++i) {
            const size_t entry = size_t{s} * stride_ + i;
            mirror_[shape.buffer][entry] = static_cast<int32_t>((size_t{s} * used + i) % limits_.blocks);
            patches(shape.buffer)[patch_count_++] = {static_cast<int>(entry), mirror_[shape.buffer][entry]};
        }
    }
    return upload_rows(stream, host, device_[shape.buffer].as<int32_t>(), at.total, patches(shape.buffer), patch_count_,
                       table_[shape.buffer].as<int32_t>());
}

}  // namespace baton::backend::cuda
