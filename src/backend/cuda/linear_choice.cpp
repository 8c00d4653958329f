#include "backend/cuda/linear_choice.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "baton/base/digest.hpp"

namespace baton::backend::cuda {

namespace {

constexpr char kMagic[8] = {'b', 'a', 't', 'o', 'n', 'L', 'i', 'n'};
constexpr uint32_t kVersion = 8;  // raise it when a kernel's meaning or speed changes
constexpr uint32_t kRecordsMax = 4096;
constexpr size_t kGpuMax = 256;
constexpr size_t kFileMax = size_t{1} << 20;

class Writer {
  public:
    template <class V>
    void put(V value) {
        const auto* raw = reinterpret_cast<const std::byte*>(&value);
        bytes_.insert(bytes_.end(), raw, raw + sizeof value);
    }
    void put(const std::string& text) {
        put(static_cast<uint32_t>(text.size()));
        for (char c : text) put(c);
    }
    std::vector<std::byte>& bytes() { return bytes_; }

  private:
    std::vector<std::byte> bytes_;
};

/// Reads until the bytes end; `ok` turns false at the first read past them.
class Reader {
  public:
    explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}
    template <class V>
    V get() {
        V value = {};
        if (rest_.size() < sizeof value) {
            ok_ = false;
            return value;
        }
        std::memcpy(&value, rest_.data(), sizeof value);
        rest_ = rest_.subspan(sizeof value);
        return value;
    }
    std::string text(size_t most) {
        const auto size = get<uint32_t>();
        if (!ok_ || size > most || size > rest_.size()) {
            ok_ = false;
            return {};
        }
        std::string value(reinterpret_cast<const char*>(rest_.data()), size);
        rest_ = rest_.subspan(size);
        return value;
    }
    [[nodiscard]] bool ok() const { return ok_; }
    [[nodiscard]] bool empty() const { return rest_.empty(); }

  private:
    std::span<const std::byte> rest_;
    bool ok_ = true;
};

static_assert(std::endian::native == std::endian::little);

void write_record(Writer& out, const ShapeKey& key, uint32_t bucket, const Choice& choice) {
    out.put(static_cast<uint8_t>(key.elem));
    out.put(static_cast<uint8_t>(key.out));
    out.put(static_cast<uint8_t>((key.bias ? 1 : 0) | (key.norm ? 2 : 0) | (key.deterministic ? 4 : 0)));
    out.put(static_cast<uint8_t>(bucket));
    out.put(key.n);
    out.put(key.k);
    out.put(static_cast<uint8_t>(choice.kind));
    out.put(choice.gemv.variant);
    out.put(choice.gemv.k_warps);
    out.put(choice.tile.variant);
    out.put(choice.tile.splits);
    out.put(static_cast<uint8_t>((choice.tile.cluster ? 1 : 0) | (choice.tile.norm_fused ? 2 : 0)));
    out.put(choice.direct.variant);
    out.put(choice.direct.slices);
    out.put(choice.direct.tiles);
    for (uint8_t part : {choice.ring.variant, choice.ring.splits, choice.ring.share, choice.ring.w_stages, choice.ring.x_stages}) out.put(part);
    out.put(static_cast<uint8_t>(choice.ring.norm_fused ? 1 : 0));
    out.put(choice.held);
    for (uint8_t part : {choice.slab.variant, choice.slab.slices, choice.slab.splits}) out.put(part);
    out.put(static_cast<uint8_t>(choice.slab.late ? 1 : 0));
    for (uint8_t part : {choice.bulk.variant, choice.bulk.share_m, choice.bulk.share_n, choice.bulk.band}) out.put(part);
    out.put(choice.microseconds);
    for (uint64_t word : choice.algo) out.put(word);
}

bool read_record(Reader& in, Choices& choices) {
    ShapeKey key;
    const auto elem = in.get<uint8_t>();
    const auto kind_of_out = in.get<uint8_t>();
    const auto flags = in.get<uint8_t>();
    const auto bucket = in.get<uint8_t>();
    key.n = in.get<uint32_t>();
    key.k = in.get<uint32_t>();
    const auto kind = in.get<uint8_t>();
    Choice choice;
    choice.gemv.variant = in.get<uint8_t>();
    choice.gemv.k_warps = in.get<uint8_t>();
    choice.tile.variant = in.get<uint8_t>();
    choice.tile.splits = in.get<uint8_t>();
    const auto tile_flags = in.get<uint8_t>();
    choice.direct.variant = in.get<uint8_t>();
    choice.direct.slices = in.get<uint8_t>();
    choice.direct.tiles = in.get<uint8_t>();
    for (uint8_t* part : {&choice.ring.variant, &choice.ring.splits, &choice.ring.share, &choice.ring.w_stages, &choice.ring.x_stages})
        *part = in.get<uint8_t>();
    const auto ring_flags = in.get<uint8_t>();
    choice.held = in.get<uint8_t>();
    for (uint8_t* part : {&choice.slab.variant, &choice.slab.slices, &choice.slab.splits}) *part = in.get<uint8_t>();
    const auto slab_flags = in.get<uint8_t>();
    for (uint8_t* part : {&choice.bulk.variant, &choice.bulk.share_m, &choice.bulk.share_n, &choice.bulk.band}) *part = in.get<uint8_t>();
    choice.microseconds = in.get<float>();
    for (uint64_t& word : choice.algo) word = in.get<uint64_t>();
    if (!in.ok() || elem > 1 || kind_of_out > 3 || flags > 7 || bucket >= kBuckets || kind > 7 || tile_flags > 3 || ring_flags > 1 || slab_flags > 1) return false;
    choice.ring.norm_fused = ring_flags != 0;
    choice.slab.late = slab_flags != 0;
    if (choice.held >= held_shapes().size() || choice.ring.variant >= ring_shapes().size() || choice.ring.splits == 0 || choice.ring.share == 0) return false;
    if (choice.slab.variant >= slab_shapes().size() || choice.slab.slices == 0 || choice.slab.splits == 0) return false;
    if (choice.bulk.variant >= bulk_shapes().size() || choice.bulk.band == 0) return false;
    if (!std::has_single_bit(choice.bulk.share_m) || choice.bulk.share_m > 4 || !std::has_single_bit(choice.bulk.share_n) || choice.bulk.share_n > 2) return false;
    if (!(choice.microseconds >= 0.0f && choice.microseconds < 1e9f)) return false;
    if (choice.gemv.variant >= gemv_shapes().size() || choice.tile.variant >= tile_shapes().size()) return false;
    if (!std::has_single_bit(choice.gemv.k_warps) || choice.gemv.k_warps > 8) return false;
    if (!std::has_single_bit(choice.tile.splits) || choice.tile.splits > 8) return false;
    if (choice.direct.variant >= direct_shapes().size()) return false;
    if (choice.direct.slices == 0 || choice.direct.slices > 16 || choice.direct.tiles == 0 || choice.direct.tiles > 8) return false;
    key.elem = static_cast<Elem>(elem);
    key.out = static_cast<Out>(kind_of_out);
    key.bias = (flags & 1) != 0;
    key.norm = (flags & 2) != 0;
    key.deterministic = (flags & 4) != 0;
    choice.kind = static_cast<Kind>(kind);
    choice.tile.cluster = (tile_flags & 1) != 0;
    choice.tile.norm_fused = (tile_flags & 2) != 0;
    choices[{key, bucket}] = choice;
    return true;
}

}  // namespace

uint32_t bucket_of(uint32_t m) { return m <= 1 ? 0 : static_cast<uint32_t>(std::bit_width(m - 1)); }

std::string describe(const Choice& choice) {
    switch (choice.kind) {
        case Kind::kGemv: {
            const GemvShape shape = gemv_shapes()[choice.gemv.variant];
            return "gemv r" + std::to_string(shape.rows) + "c" + std::to_string(shape.chunks) + " kw" +
                   std::to_string(choice.gemv.k_warps);
        }
        case Kind::kRing: {
            const RingTile shape = ring_shapes()[choice.ring.variant];
            return "ring " + std::to_string(shape.rows) + "x" + std::to_string(shape.cols) + " s" + std::to_string(choice.ring.splits) +
                   (choice.ring.share > 1 ? " share" + std::to_string(choice.ring.share) : "") + " st" +
                   std::to_string(choice.ring.w_stages) + "," + std::to_string(choice.ring.x_stages) +
                   (choice.ring.norm_fused ? " norm" : "");
        }
        case Kind::kHeld: {
            const HeldShape shape = held_shapes()[choice.held];
            return "held r" + std::to_string(shape.rows) + "c" + std::to_string(shape.chunks);
        }
        case Kind::kSlab: {
            const SlabShape shape = slab_shapes()[choice.slab.variant];
            return "slab " + std::to_string(shape.x_tiles * 16) + "x" + std::to_string(shape.w_tiles * 8) + " k" +
                   std::to_string(choice.slab.slices) + " s" + std::to_string(choice.slab.splits) + (choice.slab.late ? " late" : "");
        }
        case Kind::kBulk:
            return "bulk 128x" + std::to_string(bulk_shapes()[choice.bulk.variant].cols) + " share" + std::to_string(choice.bulk.share_m) + "," +
                   std::to_string(choice.bulk.share_n) + " band" + std::to_string(choice.bulk.band);
        case Kind::kTile: {
            const TileShape shape = tile_shapes()[choice.tile.variant];
            return "tile " + std::to_string(shape.rows) + "x" + std::to_string(shape.cols) + " s" +
                   std::to_string(choice.tile.splits) + (choice.tile.cluster ? "c" : "") + (choice.tile.norm_fused ? " norm" : "");
        }
        case Kind::kDirect: {
            const DirectShape shape = direct_shapes()[choice.direct.variant];
            return std::string("direct u") + std::to_string(shape.units) + (shape.half ? "h" : "") + "m" + std::to_string(shape.m_max) +
                   " s" + std::to_string(choice.direct.slices) + "t" + std::to_string(choice.direct.tiles);
        }
        case Kind::kLt: break;
    }
    return "cublaslt";
}

std::string CacheIdentity::file_name() const {
    std::string name = "linear-";
    for (char c : gpu) name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
    return name.substr(0, 80) + "-lt" + std::to_string(lt_version) + "-v" + std::to_string(kVersion) + ".bin";
}

std::vector<std::byte> encode_choices(const CacheIdentity& identity, const Choices& choices) {
    Writer out;
    for (char c : kMagic) out.put(c);
    out.put(kVersion);
    out.put(identity.gpu.substr(0, kGpuMax));
    out.put(identity.lt_version);
    const auto count = static_cast<uint32_t>(std::min<size_t>(choices.size(), kRecordsMax));
    out.put(count);
    uint32_t written = 0;
    for (const auto& [where, choice] : choices) {
        if (written++ == count) break;
        write_record(out, where.first, where.second, choice);
    }
    out.put(checksum64(out.bytes()));
    return std::move(out.bytes());
}

Expected<Choices> decode_choices(const CacheIdentity& identity, std::span<const std::byte> bytes) {
    const auto corrupt = [](const char* what) {
        return fail(ErrorCode::kCorrupt, std::string("tuning cache: ") + what);
    };
    if (bytes.size() < sizeof kMagic + sizeof(uint64_t) || bytes.size() > kFileMax) return corrupt("its size is wrong");
    const auto body = bytes.first(bytes.size() - sizeof(uint64_t));
    if (Reader(bytes.subspan(body.size())).get<uint64_t>() != checksum64(body)) return corrupt("its checksum is wrong");
    Reader in(body);
    for (char c : kMagic)
        if (in.get<char>() != c) return corrupt("it is another kind of file");
    if (in.get<uint32_t>() != kVersion) return corrupt("it has another version");
    if (in.text(kGpuMax) != identity.gpu.substr(0, kGpuMax) || in.get<uint64_t>() != identity.lt_version)
        return corrupt("it is for another GPU or cuBLASLt");
    const auto count = in.get<uint32_t>();
    if (!in.ok() || count > kRecordsMax) return corrupt("its count is out of range");
    Choices choices;
    for (uint32_t i = 0; i < count; ++i)
        if (!read_record(in, choices)) return corrupt("a record is out of range");
    if (!in.empty()) return corrupt("bytes are left over");
    return choices;
}

Choices load_choices(const std::string& folder, const CacheIdentity& identity) {
    if (folder.empty()) return {};
    std::ifstream file(std::filesystem::path(folder) / identity.file_name(), std::ios::binary);
    if (!file) return {};
    std::vector<char> text(kFileMax + 1);
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    const auto size = static_cast<size_t>(file.gcount());
    auto choices = decode_choices(identity, std::as_bytes(std::span(text.data(), size)));
    return choices ? std::move(*choices) : Choices{};
}

Expected<void> save_choices(const std::string& folder, const CacheIdentity& identity, const Choices& choices) {
    if (folder.empty()) return {};
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    const std::filesystem::path path = std::filesystem::path(folder) / identity.file_name();
    std::filesystem::path temporary = path;
    temporary += "." + std::to_string(::getpid()) + "." + random_hex(4);
    const std::vector<std::byte> bytes = encode_choices(identity, choices);
    {
        std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
        file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
        file.close();
        if (!file) {
            std::filesystem::remove(temporary, error);
            return fail(ErrorCode::kIo, "cannot write the tuning cache in " + folder);
        }
    }
    std::filesystem::rename(temporary, path, error);
    if (error) {
        std::filesystem::remove(temporary, error);
        return fail(ErrorCode::kIo, "cannot rename the tuning cache in " + folder);
    }
    return {};
}

}  // namespace baton::backend::cuda
