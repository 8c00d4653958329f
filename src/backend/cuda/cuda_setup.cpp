// What happens once: device, weights, memory, tuning, graphs.
#include <algorithm>
#include <chrono>
#include <set>
#include <tuple>

#include "backend/cuda/attention_out.hpp"
#include "backend/cuda/cuda_backend.hpp"
#include "backend/cuda/device_info.hpp"
#include "backend/cuda/device_traits.hpp"

namespace baton::backend::cuda {

namespace {

constexpr uint64_t kGraphReserve = uint64_t{256} << 20;  // what graphs and the driver may still take once the pool is there
constexpr uint64_t kUncounted = uint64_t{512} << 20;     // what modules and libraries take beside its buffers, at most
constexpr uint32_t kBatchTokensMax = 65536;
constexpr uint32_t kSlicesMax = 1024;
constexpr uint32_t kWarmContexts[] = {1024, 4096};  // the graphs that are made ahead
constexpr const char* kPageFormat = "cuda-hnd-1";

tl::unexpected<Error> invalid(std::string message, std::string param) {
    return fail(ErrorCode::kInvalidArgument, std::move(message), std::move(param));
}

Expected<void> check_options(const CudaOptions& o) {
    if (o.block_tokens != 16 && o.block_tokens != 32 && o.block_tokens != 64)
        return invalid("block_tokens must be 16, 32 or 64 on a GPU", "block_tokens");
    if (o.max_batch_tokens == 0 || o.max_batch_tokens > kBatchTokensMax)
        return invalid("max_batch_tokens must be within 1.." + std::to_string(kBatchTokensMax), "max_batch_tokens");
    if (o.max_batch_slices == 0 || o.max_batch_slices > kSlicesMax)
        return invalid("max_batch_slices must be within 1.." + std::to_string(kSlicesMax), "max_batch_slices");
    return {};
}

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

uint64_t device_free() {
    size_t free = 0, total = 0;
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? free : 0;
}

}  // namespace

Expected<std::unique_ptr<CudaBackend>> CudaBackend::make(const Plan& plan, const CudaOptions& options) {
    BATON_TRY(check_options(options));
    std::unique_ptr<CudaBackend> backend(new CudaBackend(options));
    LoadPhases& phases = backend->phases_;
    BATON_TRY_ASSIGN(backend->model_, lower(plan));
    BATON_TRY(backend->open_device());
    phases.done("context");
    BATON_TRY(backend->load());
    phases.done("weights");
    BATON_TRY(backend->make_products());
    phases.done("products");
    BATON_TRY(backend->make_buffers(plan.rope));
    phases.done("buffers");
    BATON_TRY(backend->make_pool());
    BATON_TRY(backend->make_joined());
    phases.done("pool");
    BATON_TRY(backend->choose_overlap());
    phases.done("overlap");
    BATON_TRY(backend->warm_up());
    phases.done("graphs");
    backend->model_.layers.clear();  // views into files that may go now
    backend->memory_bytes_ = backend->taken();
    return backend;
}

Expected<void> CudaBackend::open_device() {
    BATON_TRY(use_device(options_.device));
    cudaDeviceProp properties{};
    BATON_CUDA_TRY(cudaGetDeviceProperties(&properties, static_cast<int>(options_.device)), "the properties of the GPU");
    if (properties.major < 8)
        return fail(ErrorCode::kUnsupported, std::string("GPU ") + std::to_string(options_.device) + " (" + properties.name +
                                                 ") has compute capability " + std::to_string(properties.major) + "." +
                                                 std::to_string(properties.minor) + "; 8.0 and later are supported");
    device_name_ = properties.name;
    multiprocessors_ = static_cast<uint32_t>(properties.multiProcessorCount);
    pdl_ = current_device().runs_sm90_code();
    free_at_start_ = device_free();
    held_at_start_ = device_bytes_held();
    const uint32_t context = model_.shape.context;
    positions_max_ = options_.max_model_len == 0 ? context : std::min(options_.max_model_len, context);
    int lowest = 0, highest = 0;
    BATON_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "stream priorities");
    BATON_TRY_ASSIGN(stream_, make_stream(highest < 0 ? highest + 1 : 0));
    return {};
}

Expected<void> CudaBackend::load() {
    const uint64_t needed = weight_bytes(model_);
    BATON_TRY_ASSIGN(const uint64_t all, budget());
    if (needed > all)
        return fail(ErrorCode::kUnavailable, "the weights need " + std::to_string(needed) + " bytes of GPU " +
                                                 std::to_string(options_.device) + ", of which baton may take " + std::to_string(all) +
                                                 " (" + std::to_string(free_at_start_) + " are free)");
    BATON_TRY_ASSIGN(weights_, load_weights(model_, options_.fp16 ? Elem::kF16 : Elem::kBF16));
    return {};
}

/// What this backend has taken of the device so far. Where others start or end meanwhile, what is free tells of them too: only
/// what is near the size of its own buffers is believed.
uint64_t CudaBackend::taken() const {
    const uint64_t now = device_free(), own = device_bytes_held() - held_at_start_;
    return std::clamp(free_at_start_ > now ? free_at_start_ - now : 0, own, own + kUncounted);
}

/// All that this backend may take of the device.
Expected<uint64_t> CudaBackend::budget() const {
    if (options_.memory_bytes == 0) return free_at_start_ / 10 * 9;
    if (options_.memory_bytes > free_at_start_)
        return fail(ErrorCode::kUnavailable, "GPU " + std::to_string(options_.device) + " has " + std::to_string(free_at_start_) +
                                                 " bytes free, fewer than the " + std::to_string(options_.memory_bytes) + " asked for",
                    "memory_bytes");
    return options_.memory_bytes;
}

StepLimits CudaBackend::limits() const {
    StepLimits l;
    l.tokens_max = options_.max_batch_tokens;
    l.slices_max = options_.max_batch_slices;
    l.block_tokens = options_.block_tokens;
    l.positions_max = positions_max_;
    l.blocks = layout_.blocks;
    l.vocab = model_.shape.vocab;
    l.deterministic = options_.deterministic;
    return l;
}

/// Chooses a kernel for every distinct product and number of rows.
Expected<void> CudaBackend::make_products() {
    const auto start = std::chrono::steady_clock::now();
    const ModelShape& m = model_.shape;
    const Weights::Layer& first = weights_.layers.front();
    LinearOptions o;
    o.elem = options_.fp16 ? Elem::kF16 : Elem::kBF16;
    o.rows_max = std::max(options_.max_batch_tokens, options_.max_batch_slices);
    o.width_max = std::max({m.hidden, first.qkv.n, first.out.k, first.gate_up.n, first.down.k});
    o.deterministic = options_.deterministic;
    o.cache_folder = options_.cache_folder;
    BATON_TRY_ASSIGN(linear_, Linear::create(o));
    o.rows_max = options_.max_batch_slices;
    o.width_max = m.hidden;
    BATON_TRY_ASSIGN(head_linear_, Linear::create(o));
    std::set<std::tuple<uint32_t, uint32_t, Out, bool, bool>> seen;
    for (const Weights::Layer& layer : weights_.layers) {
        for (const Matrix* matrix : {&layer.qkv, &layer.out, &layer.gate_up, &layer.down}) {
            const auto shape = std::make_tuple(matrix->n, matrix->k, matrix->out, matrix->norm != nullptr, matrix->bias != nullptr);
            if (seen.insert(shape).second) BATON_TRY(linear_->tune(*matrix, stream_.get()));
        }
    }
    BATON_TRY(head_linear_->tune(weights_.head, stream_.get()));
    BATON_TRY(make_mlp());
    tuning_seconds_ = seconds_since(start);
    return {};
}

/// Whether kernels whose blocks wait for each other, so that they must have the GPU to themselves, find it so.
Expected<bool> CudaBackend::has_gpu_alone() const {
    int shared = 0;
    BATON_CUDA_TRY(cudaDeviceGetAttribute(&shared, cudaDevAttrMpsEnabled, static_cast<int>(options_.device)), "whether others share the GPU");
    return shared == 0;
}

/// Looks whether the feed-forward part of all layers may be one kernel.
Expected<void> CudaBackend::make_mlp() {
    BATON_TRY_ASSIGN(const bool alone, has_gpu_alone());
    if (options_.deterministic || !alone) return {};
    const Elem elem = options_.fp16 ? Elem::kF16 : Elem::kBF16;
    BATON_CUDA_TRY(mlp_prepare(elem, mlp_limits_), "preparing the feed-forward kernels");
    size_t bytes = 0;
    for (const Weights::Layer& layer : weights_.layers)
        for (uint8_t form = 0; form < mlp_shapes().size(); ++form) {
            const Mlp part = {elem, layer.gate_up, layer.down, {}, {}, mlp_shapes()[form].x_tiles * 16u, nullptr};
            if (mlp_takes(part, form, mlp_limits_)) bytes = std::max(bytes, mlp_slot_bytes(part, form));
        }
    if (bytes == 0) return {};
    BATON_TRY_ASSIGN(mlp_slots_, DeviceBuffer::make(bytes, "sums of the feed-forward part"));
    BATON_CUDA_TRY(cudaMemsetAsync(mlp_slots_.data(), 0xff, bytes, stream_.get()), "sums of the feed-forward part");
    return {};
}

/// Looks whether qkv and attention of all layers may be one kernel.
Expected<void> CudaBackend::make_joined() {
    BATON_TRY_ASSIGN(const bool alone, has_gpu_alone());
    if (options_.deterministic || !alone || options_.max_batch_slices < kQkvAttentionRows) return {};
    AtOnceLimits limits;
    BATON_CUDA_TRY(qkv_attention_prepare(setup_.elem, limits), "preparing the kernel of qkv and attention");
    for (uint32_t layer = 0; layer < model_.shape.layers; ++layer) {
        QkvAttention part;
        part.qkv = weights_.layers[layer].qkv;
        part.rope.q_norm = weights_.layers[layer].q_norm;
        part.rope.k_norm = weights_.layers[layer].k_norm;
        part.attention.kv = setup_.kv[layer];
        part.attention.heads = model_.shape.heads;
        part.attention.sequences = kQkvAttentionRows;
        if (!qkv_attention_takes(part, limits) || !attention_out_takes(weights_.layers[layer].out)) return {};
    }
    BATON_TRY_ASSIGN(qkv_slots_, DeviceBuffer::make(qkv_attention_slot_bytes(), "rows of qkv"));
    BATON_CUDA_TRY(cudaMemsetAsync(qkv_slots_.data(), 0xff, qkv_slots_.size(), stream_.get()), "rows of qkv");
    setup_.qkv_slots = qkv_slots_.data();
    return {};
}

Expected<void> CudaBackend::make_buffers(const Rope& rope) {
    const ModelShape& m = model_.shape;
    const uint64_t rows = std::max(options_.max_batch_tokens, options_.max_batch_slices), slices = options_.max_batch_slices;
    const uint64_t query = uint64_t{m.heads} * m.head_dim, qkv = query + uint64_t{2} * m.kv_heads * m.head_dim;
    uint64_t at = 0;
    const auto take = [&at](uint64_t elements) {
        const uint64_t offset = at;
        at += (elements * 2 + 255) / 256 * 256;
        return offset;
    };
    const uint64_t offsets[] = {take(rows * m.hidden), take(rows * qkv), take(rows * query),
                                take(rows * query),    take(rows * m.ffn), take(slices * m.hidden)};
    BATON_TRY_ASSIGN(activations_, DeviceBuffer::make(at, "the activations"));
    BATON_CUDA_TRY(cudaMemset(activations_.data(), 0, at), "the activations");
    void** const targets[] = {&setup_.hidden, &setup_.qkv, &setup_.q, &setup_.attention, &setup_.act, &setup_.last};
    for (size_t i = 0; i < std::size(targets); ++i) *targets[i] = activations_.data() + offsets[i];
    const uint64_t logits = slices * m.vocab * sizeof(float);
    BATON_TRY_ASSIGN(logits_, DeviceBuffer::make(logits, "the logits"));
    if (options_.keep_logits) {
        BATON_TRY_ASSIGN(kept_, DeviceBuffer::make(logits, "a copy of the logits"));
    }
    const size_t workspace = decode_workspace_bytes(options_.max_batch_slices, m.heads, m.head_dim, multiprocessors_);  // splits are never more
    BATON_TRY_ASSIGN(decode_workspace_, DeviceBuffer::make(workspace, "decode attention"));
    BATON_CUDA_TRY(cudaMemset(decode_workspace_.data(), 0, workspace), "decode attention");
    BATON_TRY_ASSIGN(sampler_, Sampler::create(m.vocab, options_.max_batch_slices, options_.max_batch_slices));

    const uint32_t half = m.head_dim / 2;
    BATON_TRY_ASSIGN(rope_, DeviceBuffer::make(uint64_t{positions_max_} * half * sizeof(float2), "the rotations"));
    BATON_TRY_ASSIGN(const DeviceBuffer frequencies, DeviceBuffer::make(half * sizeof(float), "the rotations"));
    // On the stream of its reader, which does not wait for the default stream.
    BATON_CUDA_TRY(cudaMemcpyAsync(frequencies.data(), rope.inv_freq.data(), half * sizeof(float), cudaMemcpyHostToDevice, stream_.get()), "the rotations");
    BATON_CUDA_TRY(rope_table(stream_.get(), frequencies.as<float>(), half, rope.scale, positions_max_, rope_.as<float2>()), "the rotations");
    BATON_CUDA_TRY(cudaStreamSynchronize(stream_.get()), "the rotations");

    setup_.model = m;
    setup_.elem = options_.fp16 ? Elem::kF16 : Elem::kBF16;
    setup_.weights = &weights_;
    setup_.linear = linear_.get();
    setup_.head_linear = head_linear_.get();
    setup_.sampler = sampler_.get();
    setup_.rope = rope_.as<float2>();
    setup_.logits = logits_.as<float>();
    setup_.kept = kept_.as<float>();
    setup_.decode_workspace = decode_workspace_.data();
    setup_.mlp_slots = mlp_slots_.data();
    return {};
}

/// The KV pool takes what is left.
Expected<void> CudaBackend::make_pool() {
    const ModelShape& m = model_.shape;
    layout_.order = options_.kv_first ? kv::PoolOrder::kKvFirst : kv::PoolOrder::kBlockFirst;
    layout_.dtype = static_cast<uint8_t>(options_.fp16 ? tensor::DType::kF16 : tensor::DType::kBF16);
    layout_.layers = m.layers;
    layout_.kv_heads = m.kv_heads;
    layout_.head_dim = m.head_dim;
    layout_.block_tokens = options_.block_tokens;
    layout_.page_format = kPageFormat;
    BATON_TRY_ASSIGN(const uint64_t all, budget());
    const uint64_t used = taken() + kGraphReserve + StepInput::bytes(limits());
    const uint64_t left = all > used ? all - used : 0;
    const uint64_t sequence = (positions_max_ + options_.block_tokens - 1) / options_.block_tokens;
    const uint64_t blocks = options_.blocks != 0 ? options_.blocks : std::min<uint64_t>(left / layout_.block_bytes(), INT32_MAX / options_.block_tokens);
    if (blocks * layout_.block_bytes() > left || (options_.blocks == 0 && blocks < sequence))
        return fail(ErrorCode::kUnavailable,
                    "GPU " + std::to_string(options_.device) + " has too little memory for the KV pool: " +
                        std::to_string(std::max(options_.blocks != 0 ? blocks : sequence, uint64_t{1}) * layout_.block_bytes()) +
                        " bytes are needed (" + (options_.blocks != 0 ? std::to_string(blocks) + " blocks" : "one sequence of " + std::to_string(positions_max_) + " positions") +
                        "), " + std::to_string(left) + " are left of " + std::to_string(all) + " after weights and buffers (" +
                        std::to_string(free_at_start_) + " were free)");
    layout_.blocks = static_cast<uint32_t>(blocks);
    BATON_TRY_ASSIGN(pool_, DeviceBuffer::make(layout_.pool_bytes(), "the KV pool"));
    if (options_.noise) {
        BATON_CUDA_TRY(fill_noise(stream_.get(), setup_.elem, pool_.data(), pool_.size() / 2, 7), "the KV pool");
    } else {
        BATON_CUDA_TRY(cudaMemsetAsync(pool_.data(), 0, pool_.size(), stream_.get()), "the KV pool");
    }
    BATON_TRY_ASSIGN(movers_, CudaDevicePool::make(static_cast<int>(options_.device), pool_.data(), layout_));
    const auto elements = [](size_t bytes) { return static_cast<int64_t>(bytes / 2); };
    for (uint32_t layer = 0; layer < m.layers; ++layer) {
        KvView view;
        view.k = pool_.data() + layout_.page_offset(layer, false, 0);
        view.v = pool_.data() + layout_.page_offset(layer, true, 0);
        view.block_stride = elements(options_.kv_first ? layout_.page_bytes() : layout_.block_bytes());
        view.block_tokens = options_.block_tokens;
        view.kv_heads = m.kv_heads;
        view.head_dim = m.head_dim;
        setup_.kv.push_back(view);
    }
    BATON_TRY_ASSIGN(input_, StepInput::make(limits()));
    BATON_TRY_ASSIGN(counter_, DeviceBuffer::make(sizeof(uint32_t), "the number of a step"));
    BATON_CUDA_TRY(cudaMemset(counter_.data(), 0, counter_.size()), "the number of a step");
    setup_.counter = counter_.as<uint32_t>();
    setup_.decode_table = input_.decode_table();
    setup_.prefill_table = input_.prefill_table();
    setup_.table_stride = input_.table_stride();
    StepBegin& begin = setup_.begin;
    input_.describe(begin);
    begin.step = setup_.counter;
    begin.settings = sampler_->upload();
    begin.embedding = weights_.embedding;
    begin.vocab = m.vocab;
    begin.hidden = m.hidden;
    begin.last = sampler_->last();
    begin.block_tokens = options_.block_tokens;
    begin.out = setup_.hidden;
    BATON_CUDA_TRY(cudaDeviceSynchronize(), "the KV pool");  // memory was set on the default stream
    return {};
}

/// Runs a step of padding, which loads its kernels, and waits for it.
Expected<void> CudaBackend::run_padding(const StepShape& shape, uint32_t context, uint32_t sequences) {
    BATON_TRY(describe_padding(shape, context, sequences));
    BATON_CUDA_TRY(run_pass(setup_, launch(), shape), "a step of padding");
    BATON_CUDA_TRY(cudaStreamSynchronize(stream_.get()), "a step of padding");
    return {};
}

/// Makes steps of padding what the next launches compute, while none is under way.
Expected<void> CudaBackend::describe_padding(const StepShape& shape, uint32_t context, uint32_t sequences) {
    input_.fill_padding(shape, context, sequences);
    for (uint32_t step = 0; step < kDepth; ++step) BATON_TRY(sampler_->describe(stream_.get(), step, {}));
    return {};
}

/// The graph of prime(): one small kernel, on a stream of its own, so that no step waits for it.
Expected<void> CudaBackend::make_primer() {
    BATON_TRY_ASSIGN(primer_stream_, make_stream());
    BATON_TRY_ASSIGN(primer_word_, DeviceBuffer::make(sizeof(ProgressWord), "no word"));
    BATON_CUDA_TRY(cudaMemsetAsync(primer_word_.data(), 0, primer_word_.size(), primer_stream_.get()), "no word");
    BATON_CUDA_TRY(publish_progress(primer_stream_.get(), primer_word_.as<ProgressWord>(), 1, 0), "no word");  // loads the kernel
    BATON_CUDA_TRY(cudaStreamSynchronize(primer_stream_.get()), "no word");
    BATON_CUDA_TRY(cudaStreamBeginCapture(primer_stream_.get(), cudaStreamCaptureModeThreadLocal), "capturing no word");
    const cudaError_t launched = publish_progress(primer_stream_.get(), primer_word_.as<ProgressWord>(), 1, 0);
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(primer_stream_.get(), &graph);
    cudaGraphExec_t made = nullptr;
    const cudaError_t status = launched != cudaSuccess ? launched : ended != cudaSuccess ? ended : cudaGraphInstantiate(&made, graph, 0);
    if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
    BATON_CUDA_TRY(status, "the graph of no word");
    primer_ = GraphExec(made);
    return {};
}

/// Runs padding through a shape and captures its graphs.
Expected<void> CudaBackend::keep_warm(StepShape shape) {
    if (graphs_.contains(shape)) return {};
    BATON_TRY(run_padding(shape, 0));
    for (const bool whole : {true, false}) {
        if (!whole && shape.rows > kRowsSampledOnce) continue;
        shape.whole = whole;
        BATON_TRY(keep_graph(shape));
        graphs_.at(shape).kept = true;
    }
    return {};
}

/// Every bucket.
Expected<void> CudaBackend::warm_up() {
    const auto start = std::chrono::steady_clock::now();
    BATON_TRY(make_primer());
    for (const uint32_t bucket : batch_buckets(options_.max_batch_slices)) {
        for (const uint32_t context : kWarmContexts) {
            // Those that are padded to joined steps wait for uneven contexts: one graph is enough until then.
            if (context != kWarmContexts[0] && joined_ && joined_->rule.splits(bucket, context, uint64_t{bucket} * context) != 0) continue;
            StepShape shape;
            shape.rows = shape.logits = bucket;
            (options_.deterministic ? shape.prefill : shape.decode) = bucket;
            shape.prefill_rows_max = options_.deterministic ? 1 : 0;
            shape.splits = splits(shape.decode, std::min(context, positions_max_));
            if (shape.decode > 0) set_overlap(shape);
            BATON_TRY(keep_warm(shape));
        }
    }
    for (uint32_t splits = 1; joined_ && splits <= kQkvAttentionRows; splits *= 2) {
        if (splits > 1 && joined_->rule.own_ns[JoinedRule::size_of(kQkvAttentionRows / splits)] <= 0) continue;  // never so
        StepShape shape = joined_shape(splits);
        set_overlap(shape);
        BATON_TRY(keep_warm(shape));
    }
    BATON_CUDA_TRY(cudaMemsetAsync(counter_.data(), 0, counter_.size(), stream_.get()), "the number of a step");
    BATON_CUDA_TRY(cudaStreamSynchronize(stream_.get()), "warming up");
    graph_seconds_ = seconds_since(start);
    return {};
}

std::string CudaBackend::tuning() const {
    const auto ms = [](double seconds) { return std::to_string(static_cast<int>(seconds * 1000.0 + 0.5)) + " ms"; };
    const double rate = static_cast<double>(weights_.memory.size()) / std::max(weights_.seconds, 1e-9) / 1e9;
    std::string overlap = "parts without overlap, by batch:";
    for (const auto& [rows, parts] : overlap_) overlap += " " + std::to_string(rows) + ":" + std::to_string(parts);
    overlap += "\n";
    return "weights: " + std::to_string(weights_.memory.size() >> 20) + " MiB in " + ms(weights_.seconds) + ", " +
           std::to_string(rate).substr(0, 5) + " GB/s; tuning " + ms(tuning_seconds_) + ", overlap " + ms(overlap_seconds_) + "; " +
           std::to_string(graphs_.size()) + " graphs in " + ms(graph_seconds_) + "\n" + overlap + linear_->choices() + head_linear_->choices();
}

}  // namespace baton::backend::cuda
