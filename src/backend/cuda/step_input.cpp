#include "backend/cuda/step_input.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

namespace baton::backend::cuda {

namespace {

tl::unexpected<Error> invalid(std::string message) {
    return fail(ErrorCode::kInvalidArgument, std::move(message));
}

uint32_t blocks_of(uint32_t tokens, uint32_t block_tokens) {
    return (tokens + block_tokens - 1) / block_tokens;
}

/// Room for any step.
uint32_t array_values(const StepLimits& limits) {
    StepShape widest;
    widest.rows = limits.rows_max();
    widest.decode = widest.prefill = widest.logits = widest.words = limits.slices_max;
    widest.gather = true;
    return array_offsets(widest).total;
}

size_t table_values(const StepLimits& limits) {
    return size_t{2} * limits.slices_max * blocks_of(limits.positions_max, limits.block_tokens);
}

std::vector<uint32_t> up_to(std::initializer_list<uint32_t> sizes, uint32_t last) {
    std::vector<uint32_t> buckets;
    for (const uint32_t size : sizes)
        if (size < last) buckets.push_back(size);
    buckets.push_back(last);
    return buckets;
}

/// Steps of many rows are padded by an eighth at most, and mostly to whole tiles of the products, which cost nothing.
std::vector<uint32_t> row_buckets(uint32_t last) {
    std::vector<uint32_t> buckets = up_to({16, 32, 48, 64, 96}, last);
    buckets.pop_back();
    for (uint32_t rows = 128, step = 64; rows < last; rows += step) {
        buckets.push_back(rows);
        step = rows >= 4096 ? 512 : rows >= 2048 ? 256 : rows >= 512 ? 128 : 64;
    }
    buckets.push_back(last);
    return buckets;
}

/// The first bucket that n fits into.
uint32_t up(const std::vector<uint32_t>& buckets, uint32_t n) { return *std::lower_bound(buckets.begin(), buckets.end(), n); }

}  // namespace

std::vector<uint32_t> batch_buckets(uint32_t slices_max) {
    return up_to({1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768}, slices_max);
}

uint32_t JoinedRule::size_of(uint32_t sequences) { return static_cast<uint32_t>(std::bit_width(sequences - 1)); }

uint32_t JoinedRule::splits(uint32_t sequences, uint32_t longest, uint64_t all) const {
    if (sequences == 0 || sequences > kQkvAttentionRows) return 0;
    const uint32_t size = size_of(sequences);
    const auto tokens = static_cast<float>(all);
    const auto takes = [&](uint32_t parts) {
        constexpr float kAhead = kQkvAttentionAhead;  // which cost nothing
        const float alone = std::max(static_cast<float>(longest) / static_cast<float>(parts) - kAhead, 0.0f) * longest_ns;
        const float shared = std::max(tokens - kAhead * static_cast<float>(sequences * parts), 0.0f) * all_ns;
        return std::max(alone, shared) + (parts > 1 ? parts_ns[size] : 0.0f);
    };
    const uint32_t most = splits_of(sequences), best = takes(most) < takes(1) ? most : 1;
    return takes(best) < own_ns[size] + tokens * all_ns ? best : 0;
}

size_t StepInput::bytes(const StepLimits& limits) {
    return sizeof(int32_t) * (array_values(limits) + table_values(limits));
}

Expected<StepInput> StepInput::make(const StepLimits& limits) {
    StepInput input;
    input.limits_ = limits;
    input.stride_ = blocks_of(limits.positions_max, limits.block_tokens);
    input.array_values_ = array_values(limits);
    const size_t patches = std::max<size_t>(table_values(limits) / 2, StepBegin::kPatchesRead);  // a step has a row or none of each pair
    for (PinnedBuffer& host : input.host_) {
        BATON_TRY_ASSIGN(host, PinnedBuffer::make(sizeof(StepHeader) + size_t{input.array_values_} * sizeof(int32_t) + patches * sizeof(int2)));
        std::memset(host.data(), 0, sizeof(StepHeader));
    }
    BATON_TRY_ASSIGN(input.device_, DeviceBuffer::make(size_t{input.array_values_} * sizeof(int32_t), "the steps' input"));
    BATON_TRY_ASSIGN(input.table_, DeviceBuffer::make(table_values(limits) * sizeof(int32_t), "the block tables"));
    BATON_CUDA_TRY(cudaMemset(input.table_.data(), 0, input.table_.size()), "the block tables");
    input.mirror_.assign(table_values(limits), 0);
    input.decode_buckets_ = batch_buckets(limits.slices_max);
    input.row_buckets_ = row_buckets(limits.rows_max());
    input.mixed_buckets_ = up_to({8, 32, 64, 128, 192, 256, 512}, limits.slices_max);
    input.prompt_buckets_ = up_to({1, 4, 16, 64}, limits.slices_max);
    input.logits_buckets_ = up_to({1, 8, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768}, limits.slices_max);
    input.first_row_.reserve(limits.slices_max);
    input.rows_.reserve(limits.slices_max);
    input.arrangement_.order.reserve(limits.slices_max);
    input.owners_.resize(size_t{2} * limits.slices_max);
    input.users_.resize(limits.slices_max);
    input.written_.assign(limits.blocks, 0);
    input.states_.assign(limits.slices_max, 0);
    return input;
}

Expected<void> StepInput::check(const Batch& batch) {
    rows_.clear();
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
    const uint32_t used = blocks_of(static_cast<uint32_t>(end), limits_.block_tokens);
    for (uint32_t b = s.state < limits_.slices_max ? blocks_known(s) : 0; b < used; ++b) last = std::max(last, s.blocks[b]);
    if (last >= limits_.blocks) return invalid(where() + " names a block outside the pool");
    if (s.state >= limits_.slices_max) return invalid(where() + " names a state row that is not there");
    if (s.logits && s.sequence == nullptr) return invalid(where() + " wants logits but names no sequence");
    if (s.pending > 1 || (s.pending == 1 && s.tokens != 1)) return invalid(where() + " waits for more than its one token");
    return {};
}

/// Blocks of the slice that are those of its step before, and so were checked. Only a pending row has had one.
uint32_t StepInput::blocks_known(const Slice& s) const { return s.pending == 0 ? 0 : users_[s.state].blocks; }

/// A block that one slice writes in this step may be neither written nor read by another (the latter is looked at where
/// prompts are computed, when whole blocks change); no two slices share a state row.
Expected<void> StepInput::check_writers(const Batch& batch) {
    ++checked_;
    const uint32_t bt = limits_.block_tokens;
    bool prompts = false;
    for (const Slice& s : batch.slices) {
        prompts = prompts || s.tokens > 1;
        if (states_[s.state] == checked_) return invalid("two slices use one state row");
        states_[s.state] = checked_;
        for (uint32_t b = s.position / bt; b <= (s.position + s.tokens - 1) / bt; ++b) {
            if (written_[s.blocks[b]] == checked_) return invalid("two slices write one block");
            written_[s.blocks[b]] = checked_;
        }
    }
    if (!prompts) return {};
    for (const Slice& s : batch.slices)
        for (uint32_t b = 0; b < s.position / bt; ++b)
            if (written_[s.blocks[b]] == checked_) return invalid("a slice reads a block that one writes");
    return {};
}

const Arrangement& StepInput::arrange(const Batch& batch) {
    Arrangement& a = arrangement_;
    a.order.clear();
    a.shape = {};
    a.decode = a.kv_max = 0;
    a.kv_all = 0;
    first_row_.clear();
    uint32_t row = 0, longest = 0;
    for (uint32_t i = 0; i < batch.slices.size(); ++i) {
        const Slice& s = batch.slices[i];
        first_row_.push_back(row);
        row += s.tokens;
        longest = std::max(longest, s.tokens);
        a.shape.words += s.progress != nullptr ? 1 : 0;
        a.shape.logits += s.logits ? 1 : 0;
        if (s.tokens > 1 || limits_.deterministic) continue;
        a.order.push_back(i);
        ++a.decode;
        a.kv_max = std::max(a.kv_max, s.position + 1);
        a.kv_all += s.position + 1;
    }
    if (a.order.size() < batch.slices.size())
        for (uint32_t i = 0; i < batch.slices.size(); ++i)
            if (batch.slices[i].tokens > 1 || limits_.deterministic) a.order.push_back(i);
    a.shape.rows = row;
    a.shape.prefill_rows_max = longest;
    pad_shape(batch);
    return a;
}

/// Makes the shape one of few, so that steps come again and again with the same one and a graph serves them.
void StepInput::pad_shape(const Batch& batch) {
    StepShape& shape = arrangement_.shape;
    const auto slices = static_cast<uint32_t>(batch.slices.size());
    const uint32_t prompts = slices - arrangement_.decode;
    if (shape.words == 0 && shape.logits == shape.rows && shape.rows == slices) {  // one row a sequence, all of them sampled
        const uint32_t splits = limits_.deterministic ? 0 : joined_splits(slices, arrangement_.kv_max, arrangement_.kv_all);
        shape.joined = splits != 0;
        if (shape.joined) shape.splits = splits;
        shape.rows = shape.logits = shape.joined ? kQkvAttentionRows : up(decode_buckets_, slices);
        (limits_.deterministic ? shape.prefill : shape.decode) = shape.rows;
        return;
    }
    // Attention for decode rows comes first and writes zeros for those that are padding; rows of prompts may lie there.
    if (arrangement_.decode > 0) shape.decode = up(mixed_buckets_, arrangement_.decode);
    if (prompts > 0) shape.prefill = up(prompt_buckets_, prompts);
    shape.rows = up(row_buckets_, std::max({shape.rows, shape.decode, shape.prefill}));
    if (shape.prefill_rows_max > 1) shape.prefill_rows_max = shape.rows;
    shape.gather = shape.logits > 0;
    if (shape.gather) shape.logits = up(logits_buckets_, shape.logits);
    if (shape.words > 0) shape.words = up(prompt_buckets_, shape.words);
}

int32_t* StepInput::arrays(uint32_t step) const { return reinterpret_cast<int32_t*>(host_[step & 1].data() + sizeof(StepHeader)); }

int2* StepInput::patches(uint32_t step) const { return reinterpret_cast<int2*>(arrays(step) + array_values_); }

void StepInput::finish(uint32_t step, uint32_t follows) {
    *reinterpret_cast<StepHeader*>(host_[step & 1].data()) = {static_cast<uint32_t>(patch_ - patches(step)), follows, {0, 0}};
}

void StepInput::describe(StepBegin& begin) const {
    for (uint32_t i = 0; i < 2; ++i) begin.from[i] = host_[i].data();
    begin.patches_at = sizeof(StepHeader) + array_values_ * static_cast<uint32_t>(sizeof(int32_t));
    begin.arrays = device_.as<int32_t>();
    begin.table = table_.as<int32_t>();
    begin.stride = stride_;
}

void StepInput::add_patch(size_t entry, int32_t block) {
    mirror_[entry] = block;
    *patch_++ = {static_cast<int>(entry), block};
}

void StepInput::patch_table(uint32_t row, const Slice& slice) {
    const uint32_t used = blocks_of(slice.position + slice.tokens, limits_.block_tokens);
    Owner& user = users_[slice.state];
    if (slice.pending == 0) ++user.user;
    Owner& owner = owners_[row];
    const bool stays = slice.pending != 0 && owner.state == slice.state && owner.user == user.user;
    const size_t first = size_t{row} * stride_;
    for (uint32_t i = stays ? owner.blocks : 0; i < used; ++i) {
        const auto block = static_cast<int32_t>(slice.blocks[i]);
        if (mirror_[first + i] != block) add_patch(first + i, block);
    }
    owner = {slice.state, user.user, used};
    user.blocks = used;
}

/// The arrays of a slice's rows, block by block.
void StepInput::fill_slice(const Slice& s, const TokenId* tokens, const ArrayOffsets& at, uint32_t row, int32_t* out) const {
    const uint32_t bt = limits_.block_tokens;
    if (s.pending != 0) out[at.tokens + row] = -1;
    else std::memcpy(out + at.tokens + row, tokens, s.tokens * sizeof(int32_t));
    for (uint32_t t = 0; t < s.tokens;) {
        const uint32_t position = s.position + t, inside = position % bt;
        const uint32_t n = std::min(bt - inside, s.tokens - t), slot = s.blocks[position / bt] * bt + inside;
        for (uint32_t i = 0; i < n; ++i) {
            out[at.positions + row + t + i] = static_cast<int32_t>(position + i);
            out[at.slots + row + t + i] = static_cast<int32_t>(slot + i);
            out[at.states + row + t + i] = static_cast<int32_t>(s.state);
        }
        t += n;
    }
}

void StepInput::fill(uint32_t step, const Batch& batch, const Arrangement& arrangement, std::span<const ProgressWord> words) {
    const StepShape& shape = arrangement.shape;
    const ArrayOffsets at = array_offsets(shape);
    int32_t* out = arrays(step);
    patch_ = patches(step);
    uint32_t row = 0, sequence = 0;
    std::vector<uint32_t>& last_row = first_row_;  // the row of a slice's last token, once the slice is laid out
    for (const uint32_t i : arrangement.order) {
        const Slice& s = batch.slices[i];
        fill_slice(s, batch.tokens.data() + first_row_[i], at, row, out);
        const auto length = static_cast<int32_t>(s.position + s.tokens);
        if (sequence < arrangement.decode) {
            out[at.kv_len + sequence] = length;
            patch_table(sequence, s);
        } else {
            const uint32_t prompt = sequence - arrangement.decode;
            out[at.kv_len + shape.decode + prompt] = length;
            out[at.row_begin + prompt] = static_cast<int32_t>(row);
            patch_table(limits_.slices_max + prompt, s);
        }
        row += s.tokens;
        last_row[i] = row - 1;
        ++sequence;
    }
    if (shape.gather) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < batch.slices.size(); ++i)
            if (batch.slices[i].logits) out[at.logit_rows + n++] = static_cast<int32_t>(last_row[i]);
        for (; n < shape.logits; ++n) out[at.logit_rows + n] = 0;
    }
    pad(shape, row, arrangement.decode, sequence - arrangement.decode, out);
    auto* progress = reinterpret_cast<ProgressWord*>(out + at.words);
    for (uint32_t i = 0; i < shape.words; ++i) progress[i] = i < words.size() ? words[i] : ProgressWord{nullptr, 0};
    finish(step, 0);
    rows_.clear();
    if (!shape.one_each()) return;
    for (const Slice& s : batch.slices) rows_.push_back({s.state, s.position});
}

bool StepInput::follows(const Batch& batch) {
    if (rows_.empty() || batch.slices.size() != rows_.size() || batch.tokens.size() != rows_.size()) return false;
    const Arrangement& a = arrangement_;
    if (a.decode != 0 && joined_splits(a.decode, a.kv_max + 1, a.kv_all + a.decode) != (a.shape.joined ? a.shape.splits : 0)) return false;
    const uint32_t bt = limits_.block_tokens;
    for (size_t i = 0; i < rows_.size(); ++i) {
        const Slice& s = batch.slices[i];
        if (s.pending != 1 || s.tokens != 1 || s.state != rows_[i].state || s.position != rows_[i].position + 1 || !s.logits ||
            s.progress != nullptr || s.position >= limits_.positions_max)
            return false;
        if (s.position % bt != 0) continue;
        // A block that no other row has written to since all of them were checked.
        const uint32_t at = s.position / bt;
        if (at >= s.blocks.size() || s.blocks[at] >= limits_.blocks || written_[s.blocks[at]] == checked_) return false;
        written_[s.blocks[at]] = checked_;
    }
    return true;
}

const Arrangement& StepInput::follow(uint32_t step, const Batch& batch) {
    patch_ = patches(step);
    const uint32_t table = arrangement_.shape.prefill > 0 ? limits_.slices_max : 0;
    for (uint32_t i = 0; i < rows_.size(); ++i)
        if (++rows_[i].position % limits_.block_tokens == 0) patch_table(table + i, batch.slices[i]);
    ++arrangement_.kv_max;
    arrangement_.kv_all += arrangement_.decode;
    finish(step, static_cast<uint32_t>(rows_.size()));
    return arrangement_;
}

/// Fills the rest of a step: rows that are computed and written nowhere, and sequences without context. In a step of one row
/// a sequence each padding sequence has one of those rows, in others none.
void StepInput::pad(const StepShape& shape, uint32_t rows, uint32_t decode, uint32_t prefill, int32_t* out) const {
    const ArrayOffsets at = array_offsets(shape);
    for (uint32_t row = rows; row < shape.rows; ++row) {
        out[at.tokens + row] = 0;
        out[at.positions + row] = 0;
        out[at.slots + row] = -1;
        out[at.states + row] = 0;
    }
    for (uint32_t s = decode; s < shape.decode; ++s) out[at.kv_len + s] = 0;
    if (shape.prefill == 0) return;
    const uint32_t each = !shape.gather && shape.logits == shape.rows ? 1 : 0;
    for (uint32_t s = prefill; s <= shape.prefill; ++s) {
        if (s < shape.prefill) out[at.kv_len + shape.decode + s] = 0;
        out[at.row_begin + s] = static_cast<int32_t>(rows + (s - prefill) * each);
    }
}

void StepInput::fill_padding(const StepShape& shape, uint32_t context, uint32_t sequences) {
    const ArrayOffsets at = array_offsets(shape);
    const uint32_t used = blocks_of(context, limits_.block_tokens);
    for (uint32_t step = 0; step < 2; ++step) {
        int32_t* out = arrays(step);
        patch_ = patches(step);
        pad(shape, 0, 0, 0, out);
        for (uint32_t i = 0; i < shape.logits && shape.gather; ++i) out[at.logit_rows + i] = 0;
        for (uint32_t i = 0; i < shape.words; ++i) reinterpret_cast<ProgressWord*>(out + at.words)[i] = {nullptr, 0};
        for (uint32_t s = 0; s < std::min(shape.decode, sequences) && context > 0; ++s) {
            out[at.kv_len + s] = static_cast<int32_t>(context);
            out[at.positions + s] = static_cast<int32_t>(context - 1);
            owners_[s] = {};
            for (uint32_t i = 0; i < used; ++i)
                add_patch(size_t{s} * stride_ + i, static_cast<int32_t>((size_t{s} * used + i) % limits_.blocks));
        }
        finish(step, 0);
    }
    rows_.clear();
}

}  // namespace baton::backend::cuda
