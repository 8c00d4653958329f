// Linear: which kernels a product runs on, and in what order where the chosen one does not fuse all of it.
#include <algorithm>
#include <cstdio>
#include <limits>

#include "backend/cuda/device_traits.hpp"
#include "backend/cuda/linear_impl.hpp"
#include "backend/cuda/linear_shared.hpp"

namespace baton::backend::cuda {

namespace {

constexpr size_t kScratchMax = size_t{128} << 20;  // bytes of each intermediate buffer, unless one row is larger
constexpr uint32_t kRowsLimit = 1u << (kBuckets - 1);
constexpr uint32_t kChunk = 256;  // elements of k a warp of the matrix-vector kernel reads at once
constexpr uint32_t kAnswers = 5;     // of the library that are measured: its later ones were the quickest by 1.2 % at most, and each is a kernel to load
constexpr uint32_t kAnswersFew = 3;  // up to 32 rows
constexpr uint32_t kFewRows = 64;   // up to which the kernel for many rows is not among the candidates

bool needs_wide(const Matrix& matrix) { return matrix.out == Out::kSwiGlu; }

}  // namespace

uint32_t deterministic_splits(uint32_t n, uint32_t k, bool clusters) {
    if (!clusters) return 1;
    const uint32_t tiles = ceil_div(k, 64);
    uint32_t splits = n <= 1536 ? 8 : (n <= 3072 ? 4 : 1);
    while (splits > 1 && splits * 2 > tiles) splits /= 2;
    return splits;
}

void add_tiles(const Product& product, const TileLimits& limits, uint32_t multiprocessors, bool fixed, std::vector<Choice>& found) {
    const auto shapes = tile_shapes();
    const uint32_t fixed_splits = deterministic_splits(product.matrix.n, product.matrix.k, limits.cluster);
    for (size_t v = 0; v < shapes.size(); ++v) {
        const TileShape& shape = shapes[v];
        const uint32_t m_tiles = ceil_div(product.m, shape.cols);
        const uint32_t tiles_max = shape.cols >= 128 ? ~0u : (shape.cols == 64 ? 4 : (shape.cols == 32 ? 2 : 1));
        if (m_tiles > tiles_max || (shape.cols > 8 && shape.cols >= 2 * product.m)) continue;
        const uint32_t blocks = m_tiles * ceil_div(product.matrix.n, shape.rows);
        for (const uint32_t splits : {1u, 2u, 4u, 8u}) {
            if (fixed && splits != fixed_splits) continue;
            if (!fixed && splits > 1 && blocks * splits >= 6 * multiprocessors) continue;
            if (!fixed && splits < 8 && blocks * splits * 3 <= multiprocessors) continue;
            for (const bool cluster : {false, true})
                for (const bool fused : {false, true}) {
                    if (cluster != (splits > 1) && !(fixed && !cluster)) continue;
                    if (fused && (fixed || product.matrix.norm == nullptr)) continue;
                    Choice choice;
                    choice.kind = Kind::kTile;
                    choice.tile = {static_cast<uint8_t>(v), static_cast<uint8_t>(splits), cluster, fused};
                    if (tile_takes(product, choice.tile, limits)) found.push_back(choice);
                }
        }
    }
}

Expected<std::unique_ptr<Linear>> Linear::create(const LinearOptions& options) {
    BATON_TRY_ASSIGN(std::unique_ptr<Linear> linear, LinearImpl::make(options));
    return linear;
}

Expected<std::unique_ptr<LinearImpl>> LinearImpl::make(const LinearOptions& options) {
    if (options.rows_max == 0 || options.rows_max > kRowsLimit)
        return fail(ErrorCode::kInvalidArgument, "linear: rows_max must be within 1.." + std::to_string(kRowsLimit));
    std::unique_ptr<LinearImpl> linear(new LinearImpl);
    linear->options_ = options;
    int device = 0;
    BATON_CUDA_TRY(cudaGetDevice(&device), "the current device");
    cudaDeviceProp properties = {};
    BATON_CUDA_TRY(cudaGetDeviceProperties(&properties, device), "the device's properties");
    linear->multiprocessors_ = static_cast<uint32_t>(properties.multiProcessorCount);
    linear->pdl_ = current_device().runs_sm90_code();
    BATON_CUDA_TRY(tile_prepare(linear->limits_), "preparing the product kernels");
    BATON_CUDA_TRY(held_prepare(options.elem, linear->held_most_), "preparing the product kernels");
    BATON_CUDA_TRY(slab_prepare(options.elem, linear->slab_most_), "preparing the product kernels");
    BATON_CUDA_TRY(ring_prepare(options.elem, linear->ring_limits_), "preparing the product kernels");
    BATON_CUDA_TRY(bulk_prepare(options.elem, linear->bulk_limits_), "preparing the product kernels");
    BATON_TRY_ASSIGN(linear->lt_, Lt::create());
    linear->identity_ = {properties.name, Lt::version()};
    linear->cached_ = load_choices(options.cache_folder, linear->identity_);
    return linear;
}

ShapeKey LinearImpl::key_of(const Matrix& matrix) const {
    return {options_.elem, matrix.out, matrix.bias != nullptr, matrix.norm != nullptr, options_.deterministic, matrix.n, matrix.k};
}

Product LinearImpl::product_of(const Matrix& matrix, const void* x, uint32_t m, void* out) const {
    return {options_.elem, matrix, x, m, out};
}

bool LinearImpl::valid(const Matrix& matrix) const {
    if (matrix.w == nullptr || matrix.n == 0 || matrix.k == 0 || matrix.k % 8 != 0) return false;
    return matrix.out != Out::kSwiGlu || matrix.n % 16 == 0;
}

LinearImpl::Entry& LinearImpl::entry_of(const Matrix& matrix) {
    const ShapeKey key = key_of(matrix);
    for (const auto& entry : entries_)
        if (entry->key == key) return *entry;
    entries_.push_back(std::make_unique<Entry>());
    entries_.back()->key = key;
    entries_.back()->checked.resize(options_.rows_max + 1);
    return *entries_.back();
}

const LinearImpl::Entry* LinearImpl::find_entry(const Matrix& matrix) const {
    const ShapeKey key = key_of(matrix);
    for (const auto& entry : entries_)
        if (entry->key == key) return entry.get();
    return nullptr;
}

uint32_t LinearImpl::alternatives(const Matrix& matrix, uint32_t m) const {
    const Entry* entry = m == 0 || m > options_.rows_max ? nullptr : find_entry(matrix);
    return entry == nullptr ? 1 : std::max<uint32_t>(1, static_cast<uint32_t>(entry->near[bucket_of(m)].size()));
}

void LinearImpl::choose(const Matrix& matrix, uint32_t m, uint32_t i) {
    if (m == 0 || m > options_.rows_max) return;
    Entry& entry = entry_of(matrix);
    const uint32_t bucket = bucket_of(m);
    if (i >= entry.near[bucket].size()) return;
    entry.by_bucket[bucket] = entry.near[bucket][i];
    entry.known[bucket] = true;
    std::fill(entry.checked.begin(), entry.checked.end(), uint8_t{0});  // asked of another algorithm
    cached_[{entry.key, bucket}] = entry.by_bucket[bucket];
}

const Choice* LinearImpl::alternative(const Matrix& matrix, uint32_t m, uint32_t i) const {
    const Entry* entry = m == 0 || m > options_.rows_max ? nullptr : find_entry(matrix);
    if (entry == nullptr) return nullptr;
    const auto& near = entry->near[bucket_of(m)];
    return i < near.size() ? &near[i] : &entry->by_bucket[bucket_of(m)];
}

bool LinearImpl::late(const Matrix& matrix, uint32_t m, uint32_t i) const {
    const Choice* choice = alternative(matrix, m, i);
    return choice != nullptr && choice->kind == Kind::kSlab && choice->slab.late;
}

uint32_t LinearImpl::family(const Matrix& matrix, uint32_t m, uint32_t i) const {
    const Choice* found = alternative(matrix, m, i);
    if (found == nullptr) return 0;
    const Choice& choice = *found;
    const auto number = [&](uint8_t variant) { return static_cast<uint32_t>(choice.kind) << 8 | variant; };
    switch (choice.kind) {
        case Kind::kGemv: return number(choice.gemv.variant);
        case Kind::kTile: return number(choice.tile.variant);
        case Kind::kDirect: return number(choice.direct.variant);
        case Kind::kRing: return number(choice.ring.variant);
        case Kind::kHeld: return number(choice.held);
        case Kind::kSlab: return number(choice.slab.variant);
        case Kind::kBulk: return number(choice.bulk.variant);
        default: return number(0);
    }
}

uint32_t LinearImpl::rows_of(uint32_t bucket) const { return std::min(options_.rows_max, 1u << bucket); }

uint32_t LinearImpl::chunk_rows(uint32_t width) const {
    size_t rows = std::max<size_t>(1, kScratchMax / (2 * size_t{width}));
    if (rows > 256) rows = rows / 256 * 256;
    return static_cast<uint32_t>(std::min<size_t>(options_.rows_max, rows));
}

Expected<void> LinearImpl::reserve(const Matrix& matrix) {
    const size_t normed = matrix.norm != nullptr ? size_t{chunk_rows(matrix.k)} * matrix.k * 2 : 0;
    const size_t wide = needs_wide(matrix) ? size_t{chunk_rows(matrix.n)} * matrix.n * 2 : 0;
    if (normed > normed_.size()) {
        normed_ = DeviceBuffer();
        BATON_TRY_ASSIGN(normed_, DeviceBuffer::make(normed, "normalised rows"));
    }
    if (wide > wide_.size()) {
        wide_ = DeviceBuffer();
        BATON_TRY_ASSIGN(wide_, DeviceBuffer::make(wide, "gate and up rows"));
    }
    return {};
}

size_t LinearImpl::bytes() const { return normed_.size() + wide_.size() + Lt::bytes(); }

bool LinearImpl::takes(const Matrix& matrix, uint32_t m, const Choice& choice) const {
    Product product = product_of(matrix, nullptr, m, nullptr);
    switch (choice.kind) {
        case Kind::kLt: return !options_.deterministic && lt_->check(product, choice.algo);
        case Kind::kGemv: return !options_.deterministic && gemv_takes(product, choice.gemv);
        case Kind::kDirect: return !options_.deterministic && direct_takes(product, choice.direct);
        case Kind::kHeld: return !options_.deterministic && held_takes(product, choice.held, held_most_);
        case Kind::kSlab: return !options_.deterministic && slab_takes(product, choice.slab, slab_most_);
        case Kind::kBulk: return !options_.deterministic && bulk_takes(product, choice.bulk, bulk_limits_);
        case Kind::kRing: return !options_.deterministic && ring_takes(product, choice.ring, ring_limits_);
        case Kind::kTile:
            if (options_.deterministic &&
                (choice.tile.splits != deterministic_splits(matrix.n, matrix.k, limits_.cluster) || choice.tile.norm_fused))
                return false;
            return tile_takes(product, choice.tile, limits_);
    }
    return false;
}

void LinearImpl::add_gemv(const Product& product, std::vector<Choice>& found) const {
    const auto shapes = gemv_shapes();
    const uint32_t chunks = ceil_div(product.matrix.k, kChunk);
    for (size_t v = 0; v < shapes.size(); ++v) {
        if (shapes[v].m_max != product.m) continue;
        for (const uint32_t warps : {1u, 2u, 4u, 8u}) {
            const uint32_t each = ceil_div(chunks, warps);
            const uint32_t passes = ceil_div(each, shapes[v].chunks);
            if (each * 2 <= shapes[v].chunks || (passes > 2 && warps < 8) || warps > chunks) continue;
            Choice choice;
            choice.kind = Kind::kGemv;
            choice.gemv = {static_cast<uint8_t>(v), static_cast<uint8_t>(warps)};
            if (gemv_takes(product, choice.gemv)) found.push_back(choice);
        }
    }
}

void LinearImpl::add_direct(const Product& product, std::vector<Choice>& found) const {
    const auto shapes = direct_shapes();
    for (size_t v = 0; v < shapes.size(); ++v) {
        const DirectShape& shape = shapes[v];
        if (product.m > shape.m_max || (shape.m_max > 8 && product.m <= 8)) continue;
        const uint32_t units = ceil_div(product.matrix.k, shape.half ? 64 : 32);
        for (const uint32_t slices : {1u, 2u, 3u, 4u, 6u, 8u, 12u, 16u}) {
            const uint32_t each = ceil_div(units, slices);
            const uint32_t passes = ceil_div(each, shape.units);
            // Many passes wait for memory each time; few units leave registers unused.
            if (slices > units || each * 2 <= shape.units || passes > 4 || (passes > 1 && slices < 4)) continue;
            for (const uint32_t tiles : {1u, 2u, 4u}) {
                if (slices * tiles < 4 || slices * tiles > 16 || (tiles > 1 && slices * tiles > 8)) continue;
                Choice choice;
                choice.kind = Kind::kDirect;
                choice.direct = {static_cast<uint8_t>(v), static_cast<uint8_t>(slices), static_cast<uint8_t>(tiles)};
                if (direct_takes(product, choice.direct)) found.push_back(choice);
            }
        }
    }
}

void LinearImpl::add_held(const Product& product, std::vector<Choice>& found) const {
    const auto shapes = held_shapes();
    const uint32_t chunks = ceil_div(product.matrix.k, kChunk);
    for (size_t v = 0; v < shapes.size(); ++v) {
        const uint32_t blocks = ceil_div(product.matrix.n, 8u * shapes[v].rows);
        // More blocks than fit at once do not hold their weights ahead; few leave multiprocessors idle.
        const uint32_t bytes = 8u * shapes[v].rows * product.matrix.k * 2;
        const bool all = blocks <= multiprocessors_ * std::max(1u, (200u << 10) / std::max(bytes, 1u));
        if (chunks + 4 <= shapes[v].chunks || !all || (blocks * 2 < multiprocessors_ && shapes[v].rows > 1)) continue;
        Choice choice;
        choice.kind = Kind::kHeld;
        choice.held = static_cast<uint8_t>(v);
        if (held_takes(product, choice.held, held_most_)) found.push_back(choice);
    }
}

void LinearImpl::add_slab(const Product& product, std::vector<Choice>& found) const {
    const auto shapes = slab_shapes();
    const Matrix& matrix = product.matrix;
    const uint32_t units = ceil_div(matrix.k, 32);
    constexpr uint32_t kAtOnce = 4;  // units of k that a warp asks for together
    for (size_t v = 0; v < shapes.size(); ++v) {
        const uint32_t x_rows = shapes[v].x_tiles * 16u;
        if (product.m > x_rows || product.m * 2 <= x_rows - 16) continue;
        const uint32_t tiles = ceil_div(result_columns(matrix), shapes[v].w_tiles * (matrix.out == Out::kSwiGlu ? 4u : 8u));
        for (const uint32_t splits : {1u, 2u, 4u}) {
            const uint32_t blocks = tiles * splits;
            const uint32_t each = ceil_div(units, splits);
            for (const uint32_t passes : {1u, 2u, 3u}) {
                const uint32_t slices = std::min<uint32_t>(ceil_div(each, kAtOnce * passes), shapes[v].warps_max);
                if (slices < 4 || ceil_div(each, kAtOnce * slices) != passes) continue;
                Choice choice;
                choice.kind = Kind::kSlab;
                choice.slab = {static_cast<uint8_t>(v), static_cast<uint8_t>(slices), static_cast<uint8_t>(splits), false};
                if (!slab_takes(product, choice.slab, slab_most_)) continue;
                // All blocks at once, so that none waits for another's memory; and most multiprocessors busy.
                const uint32_t fit = std::min((slab_most_ + 1024) / (slab_bytes(matrix, choice.slab) + 1024), 2u);
                if (blocks > multiprocessors_ * fit || blocks * 2 < multiprocessors_) continue;
                found.push_back(choice);
                choice.slab.late = true;
                found.push_back(choice);
            }
        }
    }
}

void LinearImpl::add_ring(const Product& product, std::vector<Choice>& found) const {
    if (ring_limits_.shared_bytes == 0) return;
    const Matrix& matrix = product.matrix;
    const auto shapes = ring_shapes();
    const uint32_t k_tiles = ceil_div(matrix.k, 64);
    struct Found {
        Choice choice;
        double cost;
    };
    std::vector<Found> all;
    for (size_t v = 0; v < shapes.size(); ++v) {
        const RingTile& shape = shapes[v];
        if (product.m > shape.rows) continue;
        const uint32_t stage_w = shape.cols * 128u;
        const uint32_t stage_x = shape.rows * 128u;
        const uint32_t tiles = ceil_div(matrix.n, shape.cols);
        for (const uint32_t splits : {1u, 2u, 4u, 8u}) {
            const uint32_t blocks = tiles * splits;
            const uint32_t each = ceil_div(k_tiles, splits);
            if (splits > 1 && (blocks * 4 > 5 * multiprocessors_ || each < 2)) continue;
            if (blocks * 2 < multiprocessors_ && splits < 8 && blocks * 2 * splits <= multiprocessors_ && each >= 4) continue;
            const uint32_t fixed = 1024 + (splits > 1 ? shape.rows * ((shape.cols + 31u) / 32 * 32 + 8) * 4 : 0);
            // Room for two blocks, so that the next product's weights come while this one works; or all there is.
            for (const uint32_t room : {113u << 10, ring_limits_.shared_bytes}) {
                const bool whole = room == ring_limits_.shared_bytes;
                bool resident = false;
                // Fewer stages of x where all of the weights fit beside them or a wide tile leaves little room, more where a narrow
                // tile's x is as much as its weights.
                for (const uint32_t x_most : {12u, whole ? 8u : 6u, 4u, 3u}) {
                    if (x_most == 12 && (!whole || each < 24 || shape.cols > 128)) continue;
                    const uint32_t x_stages = std::min(each, x_most);
                    const uint32_t x_bytes = fixed + x_stages * stage_x;
                    if (x_bytes + 2 * stage_w > room) continue;
                    const uint32_t w_stages = std::min({each, (room - x_bytes) / stage_w, 31u});
                    resident = w_stages >= each;
                    if (w_stages < std::min(each, 3u) || w_stages < 2 || (x_most <= 4 && !resident && shape.cols < 128)) continue;
                    const auto add = [&](bool norm_fused) {
                        // The factors of x lie in shared memory as well.
                        const uint32_t taken = x_bytes + (norm_fused ? each * 128 + 512 : 0);
                        const uint32_t w_now = taken < room ? std::min(w_stages, (room - taken) / stage_w) : 0;
                        // Where x is much beside the weights, neighbours bring it for each other: two, or four where two blocks fit on
                        // a multiprocessor. (Four larger ones took a third longer.)
                        for (const uint32_t share : {1u, 2u, 4u}) {
                            if (share > 1 && (each < 16 || tiles % share != 0)) break;
                            if (share == 4 && (whole || splits > 1)) break;
                            Choice choice;
                            choice.kind = Kind::kRing;
                            choice.ring = {static_cast<uint8_t>(v), static_cast<uint8_t>(splits), static_cast<uint8_t>(share), static_cast<uint8_t>(w_now),
                                           static_cast<uint8_t>(x_stages), norm_fused};
                            const double waves = ceil_div(blocks, multiprocessors_);
                            if (ring_takes(product, choice.ring, ring_limits_)) all.push_back({choice, waves * (shape.cols + 24.0) * each});
                        }
                    };
                    add(false);
                    if (matrix.norm != nullptr) add(true);
                    if (resident) break;
                }
                if (resident) break;
            }
        }
    }
    double least = std::numeric_limits<double>::infinity();
    for (const Found& f : all) least = std::min(least, f.cost);
    for (const Found& f : all)
        if (f.cost <= 2.5 * least) found.push_back(f.choice);
}

void LinearImpl::add_bulk(const Product& product, std::vector<Choice>& found) const {
    if (bulk_limits_.shared_bytes == 0) return;
    const Matrix& matrix = product.matrix;
    // What it was quicker at than the library: SwiGLU, which is a kernel of its own else, and few tiles with nothing to add to.
    if (matrix.out != Out::kSwiGlu && (matrix.out != Out::kStore || product.m > 512)) return;
    const auto shapes = bulk_shapes();
    struct Found {
        Choice choice;
        double cost;
    };
    std::vector<Found> all;
    double least = std::numeric_limits<double>::infinity();
    for (size_t v = 0; v < shapes.size(); ++v) {
        const uint32_t cols = matrix.out == Out::kSwiGlu ? shapes[v].cols / 2u : shapes[v].cols;
        for (const uint8_t share : {uint8_t{1}, uint8_t{2}}) {
            if (share == 1 && product.m > 1024) continue;  // neighbours that share save power
            Choice choice;
            choice.kind = Kind::kBulk;
            choice.bulk = {static_cast<uint8_t>(v), share, 1, static_cast<uint8_t>(16 / share)};
            if (!bulk_takes(product, choice.bulk, bulk_limits_)) continue;
            const uint32_t clusters = bulk_limits_.clusters[share - 1];
            const uint32_t units = ceil_div(ceil_div(product.m, 128), share) * ceil_div(result_columns(matrix), cols);
            // Turns of the whole GPU, each as long as a tile is wide; narrow tiles ask more of shared memory.
            const double cost = ceil_div(units, clusters) * (shapes[v].cols + 24.0);
            least = std::min(least, cost);
            all.push_back({choice, cost});
        }
    }
    for (const Found& f : all)
        if (f.cost <= 1.05 * least) found.push_back(f.choice);
}

std::vector<Choice> LinearImpl::candidates(const Matrix& matrix, uint32_t m) const {
    const Product product = product_of(matrix, nullptr, m, nullptr);
    std::vector<Choice> found;
    if (!options_.deterministic) {
        if (m <= 16) add_direct(product, found);
        if (m <= 2) add_gemv(product, found);
        if (m == 1) add_held(product, found);
        if (m > 2 && m <= 32) add_slab(product, found);
        for (const LtAlgo& algo : lt_->heuristics(product, m <= 32 ? kAnswersFew : kAnswers)) {
            Choice choice;
            choice.algo = algo;
            found.push_back(choice);
        }
    }
    if (!options_.deterministic && m > kFewRows) add_bulk(product, found);
    const size_t others = found.size();
    // Rows at which rings were the quickest in whole steps: with fewer the direct kernels are, with more the library.
    if (!options_.deterministic && m > 16 && m <= 64) add_ring(product, found);
    const bool rings = found.size() > others;
    if (options_.deterministic || found.empty() || (m > 1 && m <= 256 && !rings))
        add_tiles(product, limits_, multiprocessors_, options_.deterministic, found);
    return found;
}

Choice LinearImpl::untuned(const Matrix& matrix, uint32_t m) const {
    const std::vector<Choice> found = candidates(matrix, m);
    return found.empty() ? Choice{} : found.front();
}

const Choice& LinearImpl::chosen(const Matrix& matrix, uint32_t m) {
    Entry& entry = entry_of(matrix);
    const uint32_t bucket = bucket_of(m);
    Choice& choice = entry.by_bucket[bucket];
    if (!entry.known[bucket]) {
        choice = untuned(matrix, rows_of(bucket));
        entry.known[bucket] = true;
    }
    if (choice.kind != Kind::kLt) return choice;
    // The algorithm was found for the bucket's largest m; the library says whether it does for this one.
    uint8_t& checked = entry.checked[m];
    if (checked == 0) {
        checked = takes(matrix, m, choice) ? 1 : 2;
        if (checked == 2) entry.others[m] = untuned(matrix, m);
    }
    return checked == 1 ? choice : entry.others[m];
}

cudaError_t LinearImpl::run(const Launch& launch, const Matrix& matrix, const void* x, uint32_t m, void* out) {
    if (m == 0) return cudaSuccess;
    if (m > options_.rows_max || !valid(matrix)) return cudaErrorInvalidValue;
    return run_as(launch, matrix, x, m, out, chosen(matrix, m));
}

cudaError_t LinearImpl::run_as(const Launch& launch, const Matrix& matrix, const void* x, uint32_t m, void* out,
                               const Choice& choice) {
    const bool fused = choice.kind == Kind::kGemv || choice.kind == Kind::kDirect || choice.kind == Kind::kHeld || choice.kind == Kind::kSlab ||
                       (choice.kind == Kind::kTile && choice.tile.norm_fused) || (choice.kind == Kind::kRing && choice.ring.norm_fused);
    const bool normed = matrix.norm != nullptr && !fused;
    const bool wide = needs_wide(matrix) && choice.kind == Kind::kLt;
    if (!normed && !wide) return run_rows(launch, matrix, x, m, out, choice);
    const uint32_t chunk = std::min(normed ? chunk_rows(matrix.k) : options_.rows_max, wide ? chunk_rows(matrix.n) : options_.rows_max);
    if ((normed && normed_.size() < size_t{chunk} * matrix.k * 2) || (wide && wide_.size() < size_t{chunk} * matrix.n * 2))
        return cudaErrorInvalidValue;
    const size_t out_row = size_t{result_columns(matrix)} * (matrix.out == Out::kF32 ? 4 : 2);
    for (uint32_t first = 0; first < m; first += chunk) {
        const uint32_t rows = std::min(chunk, m - first);
        const void* from = static_cast<const std::byte*>(x) + size_t{first} * matrix.k * 2;
        void* to = static_cast<std::byte*>(out) + first * out_row;
        Matrix plain = matrix;
        if (normed) {
            if (const auto e = rms_norm(launch, options_.elem, from, matrix.norm, matrix.eps, rows, matrix.k, normed_.data());
                e != cudaSuccess)
                return e;
            from = normed_.data();
            plain.norm = nullptr;
        }
        if (const auto e = run_rows(launch, plain, from, rows, wide ? wide_.data() : to, choice); e != cudaSuccess) return e;
        if (wide)
            if (const auto e = swiglu(launch, options_.elem, wide_.data(), rows, matrix.n / 2, to); e != cudaSuccess) return e;
    }
    return cudaSuccess;
}

cudaError_t LinearImpl::run_rows(const Launch& launch, const Matrix& matrix, const void* x, uint32_t m, void* out,
                                 const Choice& choice) {
    const Product product = product_of(matrix, x, m, out);
    if (choice.kind == Kind::kGemv) return gemv(launch, product, choice.gemv);
    if (choice.kind == Kind::kDirect) return direct(launch, product, choice.direct);
    if (choice.kind == Kind::kTile) return tile(launch, product, choice.tile);
    if (choice.kind == Kind::kHeld) return held(launch, product, choice.held);
    if (choice.kind == Kind::kSlab) return slab(launch, product, choice.slab);
    if (choice.kind == Kind::kRing) return ring(launch, product, choice.ring, ring_limits_);
    if (choice.kind == Kind::kBulk) return bulk(launch, product, choice.bulk, bulk_limits_);
    if (const auto e = lt_->run(launch.stream, product, choice.algo); e != cudaSuccess) return e;
    if (matrix.bias == nullptr || Lt::takes_bias(matrix)) return cudaSuccess;
    return add_bias_f32(launch, options_.elem, matrix.bias, m, matrix.n, static_cast<float*>(out));
}

std::string LinearImpl::choices() const {
    constexpr double kBandwidth = 4.3e6;  // bytes a microsecond: what an H200 copies
    static constexpr const char* kOuts[] = {"store", "add", "swiglu", "f32"};
    std::string text;
    for (const auto& entry : entries_)
        for (uint32_t b = 0; b < kBuckets; ++b) {
            if (!entry->known[b]) continue;
            const ShapeKey& key = entry->key;
            const Choice& choice = entry->by_bucket[b];
            const double m = rows_of(b);
            const double bytes = 2.0 * key.n * key.k + 2.0 * m * key.k + m * key.n * (key.out == Out::kF32 ? 4 : 2);
            char line[200];
            std::snprintf(line, sizeof line, "%u x %u %s%s m %.0f: %s, %.2f us, %.0f %% of the memory floor, %.0f TFLOP/s\n", key.n,
                          key.k, kOuts[static_cast<size_t>(key.out)], key.norm ? " norm" : "", m, describe(choice).c_str(),
                          static_cast<double>(choice.microseconds),
                          choice.microseconds > 0 ? 100.0 * bytes / kBandwidth / static_cast<double>(choice.microseconds) : 0.0,
                          choice.microseconds > 0 ? 2e-6 * m * key.n * key.k / static_cast<double>(choice.microseconds) : 0.0);
            text += line;
        }
    if (!cache_error_.empty()) text += cache_error_ + "\n";
    return text;
}

}  // namespace baton::backend::cuda
