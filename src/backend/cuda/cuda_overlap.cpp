// Which kernels of a decode step start before the one ahead has ended. That mostly helps, but a kernel that waits takes room
// from those that work: at some batch sizes of some models a step is a fifth slower for it. So each size is tried.
#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include "backend/cuda/cuda_backend.hpp"
#include "backend/cuda/nccl_link.hpp"
#include "baton/base/digest.hpp"

namespace baton::backend::cuda {

namespace {

constexpr uint32_t kRowsMax = 64;   // of the sizes tried: kernels of larger ones are long
constexpr uint32_t kContext = 1024;
constexpr double kShort = 3.2e-3;  // seconds: in longer steps it matters little which of two kernels runs,
constexpr double kShortMost = 10e-3;  // but not in those of kRowsMax, where the library's lie among others that overlap
constexpr int kReplays = 3;
constexpr uint32_t kLayersPart = 4;   // of a step's layers one in so many is timed, which are alike
constexpr uint32_t kLayersLeast = 4;
constexpr double kHopeless = 1.04;  // what other products do not make up for
constexpr double kWorthIt = 0.993;  // what a change must bring, against noise
constexpr Part kTried[] = {Part::kOut, Part::kGateUp, Part::kDown, Part::kAttention};
constexpr uint32_t kLate[] = {0b0000, 0b0101, 0b1010, 0b1111};  // which of a layer's products ask late, of sets of one kernel
constexpr uint32_t kOneByOne = 10;    // alternatives of a product that are tried by themselves,
constexpr uint32_t kBesideMlp = 4;    // and where the feed-forward part is one kernel
constexpr uint32_t kAhead = 128;        // StepShape::ahead among the parts
constexpr uint32_t kMlpShift = 8;       // StepShape::mlp
constexpr uint32_t kShortContext = 128;
constexpr uint32_t kLongContext = 4096;  // against a quarter of it: what a token of context takes
constexpr const char* kFormat = "baton step overlap 8";

uint32_t mlp_of(uint32_t parts) { return parts >> kMlpShift & 0xff; }
uint32_t parts_of(const StepShape& shape) { return shape.plain | (shape.ahead ? kAhead : 0) | shape.mlp << kMlpShift; }

using TimedEvent = Handle<cudaEvent_t, cudaEventDestroy>;

/// What the choice depends on, and so the name of its file.
std::string identity_of(const ModelShape& m, const std::string& device, const std::string& products, bool fp16) {
    std::ostringstream text;
    text << kFormat << ' ' << BATON_VERSION << ' ' << device << ' ' << fp16;
    for (const uint32_t size : {m.layers, m.hidden, m.heads, m.kv_heads, m.head_dim, m.ffn, m.vocab}) text << ' ' << size;
    text << '\n' << products;
    return to_hex(sha256(text.str()));
}

/// What is kept in the file.
struct Kept {
    std::map<uint32_t, uint32_t> overlap;  ///< parts by rows
    uint32_t joined_parts = 0;
    std::optional<JoinedRule> rule;
};

/// Rows and parts, a pair a line, behind them what is known of joined steps; nothing where the file is missing or makes no sense.
Kept read_choices(const std::filesystem::path& path) {
    std::ifstream file(path);
    std::string format;
    if (!std::getline(file, format) || format != kFormat) return {};
    Kept kept;
    for (uint32_t rows = 0, parts = 0; kept.overlap.size() < 64 && file >> rows >> parts;)
        if (rows <= kRowsMax && mlp_of(parts) <= mlp_shapes().size()) kept.overlap[rows] = parts;
    file.clear();
    std::string name;
    uint32_t parts = 0;
    JoinedRule rule;
    if (!(file >> name >> parts >> rule.longest_ns >> rule.all_ns) || name != "joined" || mlp_of(parts) > mlp_shapes().size()) return kept;
    for (auto* list : {&rule.parts_ns, &rule.own_ns})
        for (float& ns : *list)
            if (!(file >> ns)) return kept;
    kept.joined_parts = parts;
    kept.rule = rule;
    return kept;
}

/// A cache that cannot be written is measured anew the next time.
void write_choices(const std::filesystem::path& path, const Kept& kept) {
    std::error_code failed;
    std::filesystem::create_directories(path.parent_path(), failed);
    const std::filesystem::path work = path.string() + "." + std::to_string(std::chrono::steady_clock::now().time_since_epoch().count());
    {
        std::ofstream file(work);
        file << kFormat << '\n';
        for (const auto& [rows, parts] : kept.overlap) file << rows << ' ' << parts << '\n';
        if (kept.rule) {
            file << "joined " << kept.joined_parts << ' ' << kept.rule->longest_ns << ' ' << kept.rule->all_ns;
            for (const auto* list : {&kept.rule->parts_ns, &kept.rule->own_ns})
                for (const float ns : *list) file << ' ' << ns;
            file << '\n';
        }
        if (!file.flush()) return;
    }
    std::filesystem::rename(work, path, failed);
}

}  // namespace

Expected<void> CudaBackend::choose_overlap() {
    if (!pdl_ || options_.deterministic) return {};
    const auto start = std::chrono::steady_clock::now();
    if (!options_.cache_folder.empty()) {
        Kept kept = read_choices(overlap_file());
        overlap_ = std::move(kept.overlap);
        const uint32_t mlp = mlp_of(kept.joined_parts);
        if (kept.rule && qkv_slots_.size() != 0 && (mlp == 0 || takes_mlp(kQkvAttentionRows, mlp))) joined_ = {kept.joined_parts, *kept.rule};
    }
    std::erase_if(overlap_, [&](const auto& kept) { return mlp_of(kept.second) != 0 && !takes_mlp(kept.first, mlp_of(kept.second)); });
    bool measured = false;
    std::vector<uint32_t> sizes = batch_buckets(options_.max_batch_slices);
    std::ranges::stable_partition(sizes, [](uint32_t rows) { return std::has_single_bit(rows); });  // others take their products
    for (const uint32_t rows : sizes) {
        if (rows > kRowsMax || overlap_.contains(rows)) continue;
        StepShape shape;
        shape.rows = shape.decode = shape.logits = rows;
        const uint32_t context = std::min(kContext, positions_max_);
        shape.splits = splits(rows, context);
        BATON_TRY(run_padding(shape, context));
        BATON_TRY_ASSIGN(double best, time_step(shape, layers_timed()));
        const auto keep_if_faster = [&](const StepShape& changed) -> Expected<void> {
            BATON_TRY_ASSIGN(const double seconds, time_step(changed, layers_timed()));
            if (seconds > best * kWorthIt) return {};
            best = seconds;
            shape = changed;
            return {};
        };
        for (const Part part : kTried) {
            StepShape changed = shape;
            changed.plain |= static_cast<uint32_t>(part);
            BATON_TRY(keep_if_faster(changed));
        }
        StepShape changed = shape;
        changed.ahead = true;
        BATON_TRY(keep_if_faster(changed));
        if (best * kLayersPart < (rows == kRowsMax ? kShortMost : kShort)) {
            Ways ways = {};
            const bool own = std::has_single_bit(rows);
            if (own) BATON_TRY(choose_products(shape, best, ways));
            BATON_TRY(choose_mlp(shape, best, own ? &ways : nullptr));
        }
        overlap_[rows] = parts_of(shape);
        measured = true;
    }
    if (!joined_ && qkv_slots_.size() != 0) {
        BATON_TRY(choose_joined());
        measured = true;
    }
    if (joined_) input_.set_joined(joined_->rule);
    if (measured && !options_.cache_folder.empty()) {
        BATON_TRY(linear_->keep());
        BATON_TRY(head_linear_->keep());
        write_choices(overlap_file(), {overlap_, joined_ ? joined_->parts : 0, joined_ ? std::optional(joined_->rule) : std::nullopt});
    }
    overlap_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return {};
}

/// Where the choices are kept: they hold for these products' kernels.
std::string CudaBackend::overlap_file() const {
    const std::string identity = identity_of(model_.shape, device_name_, linear_->choices(), options_.fp16);
    return (std::filesystem::path(options_.cache_folder) / ("overlap-" + identity.substr(0, 32))).string();
}

/// Takes these alternatives from now on.
void CudaBackend::use_products(uint32_t rows, const Ways& ways) {
    const Weights::Layer& layer = weights_.layers.front();
    linear_->choose(layer.qkv, rows, ways[0]);
    linear_->choose(layer.out, rows, ways[1]);
    linear_->choose(layer.gate_up, rows, ways[2]);
    linear_->choose(layer.down, rows, ways[3]);
    head_linear_->choose(weights_.head, rows, ways[4]);
}

/// Tries, in the step, the kernels that alone were nearly as quick as the quickest: first one kernel for all products of a layer, which
/// can be quicker than the quickest of each, asking for weights early or late, then product by product. `chosen` is what takes `best` seconds.
Expected<void> CudaBackend::choose_products(const StepShape& shape, double& best, Ways& chosen) {
    const size_t of_layer = shape.mlp != 0 ? 2 : 4;
    const Weights::Layer& layer = weights_.layers.front();
    const std::array<std::pair<Linear*, const Matrix*>, std::tuple_size_v<Ways>> products = {{{linear_.get(), &layer.qkv},
                                                                                             {linear_.get(), &layer.out},
                                                                                             {linear_.get(), &layer.gate_up},
                                                                                             {linear_.get(), &layer.down},
                                                                                             {head_linear_.get(), &weights_.head}}};
    const auto most = [&](size_t p) { return products[p].first->alternatives(*products[p].second, shape.rows); };
    const auto family = [&](size_t p, uint32_t i) { return products[p].first->family(*products[p].second, shape.rows, i); };
    const auto try_ways = [&](const Ways& ways) -> Expected<void> {
        use_products(shape.rows, ways);
        BATON_TRY_ASSIGN(const double seconds, time_step(shape, layers_timed()));
        if (seconds > best * kWorthIt) return {};
        best = seconds;
        chosen = ways;
        return {};
    };
    std::vector<Ways> alike;
    for (uint32_t i = 0; i < most(0) && shape.mlp == 0; ++i)
        for (const uint32_t late : kLate) {  // by product
            Ways ways = chosen;
            bool found = true;
            for (size_t p = 0; p < of_layer && found; ++p) {
                const auto fits = [&](uint32_t w) {
                    return family(p, w) == family(0, i) && products[p].first->late(*products[p].second, shape.rows, w) == ((late >> p & 1) != 0);
                };
                ways[p] = 0;
                while (ways[p] < most(p) && !fits(ways[p])) ++ways[p];
                found = ways[p] < most(p);
            }
            if (found && ways != chosen && std::find(alike.begin(), alike.end(), ways) == alike.end()) alike.push_back(ways);
        }
    for (const Ways& ways : alike) BATON_TRY(try_ways(ways));
    for (size_t p = 0; p < (shape.mlp == 0 ? products.size() : of_layer); ++p) {
        const Ways start = chosen;
        for (uint32_t i = 0; i < std::min(most(p), shape.mlp == 0 ? kOneByOne : kBesideMlp); ++i) {
            Ways ways = chosen;
            ways[p] = i;
            if (i != start[p]) BATON_TRY(try_ways(ways));
        }
    }
    use_products(shape.rows, chosen);
    return {};
}

/// Whether steps of so many rows may have this StepShape::mlp.
bool CudaBackend::takes_mlp(uint32_t rows, uint32_t mlp) const {
    if (mlp_slots_.size() == 0) return false;
    return std::ranges::all_of(weights_.layers, [&](const Weights::Layer& layer) {
        return mlp_takes({setup_.elem, layer.gate_up, layer.down, {}, {}, rows, nullptr}, static_cast<uint8_t>(mlp - 1), mlp_limits_);
    });
}

/// Times a shape of other kernels, and with all parts overlapping, which becomes it if it is the quicker: what the kernels that
/// they replace had gained by not overlapping says nothing of them.
Expected<double> CudaBackend::time_either(StepShape& changed) {
    BATON_TRY_ASSIGN(const double seconds, time_step(changed, layers_timed()));
    if (changed.plain == 0) return seconds;
    StepShape overlapping = changed;
    overlapping.plain = 0;
    BATON_TRY_ASSIGN(const double other, time_step(overlapping, layers_timed()));
    if (other >= seconds) return seconds;
    changed = overlapping;
    return other;
}

/// Takes `changed`, of `seconds`, in place of `shape` if it is the quicker with other products, where the size has its own.
Expected<void> CudaBackend::adopt(const StepShape& changed, double seconds, StepShape& shape, double& best, Ways* products) {
    if (seconds > best * kHopeless) return {};
    Ways ways = {};
    if (products != nullptr) {
        ways = *products;
        BATON_TRY(choose_products(changed, seconds, ways));
    }
    if (seconds > best * kWorthIt) {
        if (products != nullptr) use_products(shape.rows, *products);
        return {};
    }
    best = seconds;
    shape = changed;
    if (products != nullptr) *products = ways;
    return {};
}

/// Tries the feed-forward part as one kernel, with other products ahead of it where the size has its own, which `products` says.
Expected<void> CudaBackend::choose_mlp(StepShape& shape, double& best, Ways* products) {
    if (mlp_slots_.size() == 0) return {};
    StepShape whole = shape;
    double seconds = 0;
    for (uint8_t form = 0; form < mlp_shapes().size(); ++form) {
        if (!takes_mlp(shape.rows, form + 1u)) continue;
        StepShape changed = shape;
        changed.mlp = form + 1u;
        BATON_TRY_ASSIGN(const double now, time_either(changed));
        if (whole.mlp != 0 && now > seconds * kWorthIt) continue;
        seconds = now;
        whole = changed;
    }
    return whole.mlp == 0 ? Expected<void>{} : adopt(whole, seconds, shape, best, products);
}

StepShape CudaBackend::joined_shape(uint32_t splits) {
    StepShape shape;
    shape.splits = splits;
    shape.rows = shape.decode = shape.logits = kQkvAttentionRows;
    shape.joined = true;
    return shape;
}

/// Looks what steps with StepShape::joined take, with the feed-forward part as one kernel or two, and how much less that is than what other
/// steps of as many sequences do.
Expected<void> CudaBackend::choose_joined() {
    const uint32_t longer = std::min(kLongContext, positions_max_), quarter = longer / 4, shorter = std::min(kShortContext, quarter);
    if (shorter == 0) return {};
    StepShape shape = joined_shape(1);
    GraphExec graph;
    const auto layer_ns = [&](const StepShape& of, const GraphExec& timed, uint32_t context, uint32_t sequences) -> Expected<double> {
        BATON_TRY(describe_padding(of, context, sequences));
        BATON_TRY_ASSIGN(const double seconds, time_graph(timed));
        return seconds * 1e9 / layers_timed();
    };
    double best = 0;
    for (uint32_t mlp = 0; mlp <= mlp_shapes().size(); ++mlp) {
        if (mlp != 0 && !takes_mlp(shape.rows, mlp)) continue;
        StepShape changed = joined_shape(1);
        changed.mlp = mlp;
        BATON_TRY_ASSIGN(GraphExec made, capture_timed(changed, layers_timed()));
        BATON_TRY_ASSIGN(const double ns, layer_ns(changed, made, quarter, kQkvAttentionRows));
        if (best != 0 && ns > best) continue;
        best = ns;
        shape = changed;
        graph = std::move(made);
    }
    Joined joined;
    joined.parts = parts_of(shape);
    const auto token_ns = [&](uint32_t sequences) -> Expected<float> {
        BATON_TRY_ASSIGN(const double few, layer_ns(shape, graph, quarter, sequences));
        BATON_TRY_ASSIGN(const double many, layer_ns(shape, graph, longer, sequences));
        return static_cast<float>(std::max(0.0, (many - few) / (longer - quarter) / sequences));
    };
    JoinedRule& rule = joined.rule;
    BATON_TRY_ASSIGN(rule.longest_ns, token_ns(1));
    BATON_TRY_ASSIGN(rule.all_ns, token_ns(kQkvAttentionRows));
    for (uint32_t i = 0; i < JoinedRule::kSizes; ++i) {
        const uint32_t sequences = 1u << i;
        BATON_TRY_ASSIGN(const double whole, layer_ns(shape, graph, shorter, sequences));
        const auto of_other = [&](const StepShape& other) -> Expected<double> {
            BATON_TRY_ASSIGN(const GraphExec made, capture_timed(other, layers_timed()));
            return layer_ns(other, made, shorter, sequences);
        };
        StepShape other = shape;
        other.splits = JoinedRule::splits_of(sequences);
        if (other.splits > 1) {
            BATON_TRY_ASSIGN(const double in_parts, of_other(other));
            rule.parts_ns[i] = static_cast<float>(std::max(0.0, in_parts - whole));
        }
        other = {};
        other.rows = other.decode = other.logits = sequences;
        other.splits = splits(sequences, shorter);
        set_overlap(other);
        BATON_TRY_ASSIGN(const double own, of_other(other));
        rule.own_ns[i] = static_cast<float>(own - whole - double{rule.all_ns} * shorter * sequences);
    }
    joined_ = joined;
    return {};
}

void CudaBackend::set_overlap(StepShape& shape) const {
    const auto chosen = overlap_.find(shape.rows);
    if (!shape.joined && chosen == overlap_.end()) return;
    const uint32_t parts = shape.joined ? joined_->parts : chosen->second;
    shape.plain = parts & (kAhead - 1);
    shape.ahead = (parts & kAhead) != 0;
    // Blocks that must all run at once would wait for kernels that wait for another GPU; StepInput asks the same for joined steps.
    shape.mlp = shape.joined || nccl_links_open() == 0 ? mlp_of(parts) : 0;
}

bool CudaBackend::force_joined(bool on) {
    JoinedRule rule;
    rule.own_ns.fill(on ? 1.0f : 0.0f);
    return force_joined(rule);
}
bool CudaBackend::force_joined(const JoinedRule& rule) {
    if (!joined_) return false;
    joined_->rule = rule;
    input_.set_joined(rule);
    return true;
}

/// Enough to choose by: a graph of all layers takes as much longer to make as to run.
uint32_t CudaBackend::layers_timed() const {
    const uint32_t layers = model_.shape.layers;
    return std::min(layers, std::max(kLayersLeast, layers / kLayersPart));
}

Expected<double> CudaBackend::time_decode(uint32_t rows, uint32_t context, uint32_t layers) {
    StepShape shape;
    const uint32_t joined = joined_ ? joined_->rule.splits(rows, context, uint64_t{rows} * context) : 0;
    if (joined != 0) {
        shape = joined_shape(joined);
    } else {
        shape.rows = shape.decode = shape.logits = rows;
        shape.splits = splits(rows, context);
    }
    set_overlap(shape);
    BATON_TRY(run_padding(shape, context, rows));
    return time_step(shape, layers);
}

Expected<GraphExec> CudaBackend::capture_timed(const StepShape& shape, uint32_t layers) {
    PassSetup setup = setup_;
    setup.model.layers = std::min(layers, model_.shape.layers);
    return capture(setup, shape);
}

Expected<double> CudaBackend::time_step(const StepShape& shape, uint32_t layers) {
    BATON_TRY_ASSIGN(const GraphExec graph, capture_timed(shape, layers));
    return time_graph(graph);
}

/// The shortest of some replays, in seconds, behind one that is not counted.
Expected<double> CudaBackend::time_graph(const GraphExec& graph) {
    TimedEvent marks[kReplays + 1];
    for (TimedEvent& mark : marks) {
        cudaEvent_t event = nullptr;
        BATON_CUDA_TRY(cudaEventCreate(&event), "an event");
        mark = TimedEvent(event);
    }
    BATON_CUDA_TRY(cudaGraphLaunch(graph.get(), stream_.get()), "timing a step");
    BATON_CUDA_TRY(cudaEventRecord(marks[0].get(), stream_.get()), "timing a step");
    for (int i = 1; i <= kReplays; ++i) {
        BATON_CUDA_TRY(cudaGraphLaunch(graph.get(), stream_.get()), "timing a step");
        BATON_CUDA_TRY(cudaEventRecord(marks[i].get(), stream_.get()), "timing a step");
    }
    BATON_CUDA_TRY(cudaStreamSynchronize(stream_.get()), "timing a step");
    double best = 1e9;
    for (int i = 1; i <= kReplays; ++i) {
        float ms = 0;
        BATON_CUDA_TRY(cudaEventElapsedTime(&ms, marks[i - 1].get(), marks[i].get()), "timing a step");
        best = std::min(best, static_cast<double>(ms) / 1000.0);
    }
    return best;
}

}  // namespace baton::backend::cuda
