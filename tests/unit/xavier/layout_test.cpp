#include "xavier/layout.hpp"

#include "baton/base/digest.hpp"
#include "xavier/page_copy.hpp"
#include "xavier_harness.hpp"

namespace baton::xavier::test {
namespace {

using kv::PoolOrder;

wire::LinkHello hello(const kv::PoolLayout& layout, std::string host, bool wants_map = true) {
    wire::LinkHello h;
    h.host_id = std::move(host);
    h.layout = to_wire(layout);
    h.wants_map = wants_map;
    return h;
}

TEST(Layout, TravelsAndIsChecked) {
    for (const auto order : {PoolOrder::kBlockFirst, PoolOrder::kKvFirst}) {
        const auto l = layout_of(order, 10);
        const auto back = from_wire(to_wire(l));
        ASSERT_TRUE(back);
        EXPECT_EQ(*back, l);
    }
    const auto good = to_wire(layout_of(PoolOrder::kBlockFirst, 10));
    const auto code_with = [&](auto change) {
        auto w = good;
        change(w);
        const auto l = from_wire(w);
        return l ? ErrorCode::kOk : l.error().code;
    };
    EXPECT_EQ(code_with([](auto& w) { w.order = 0; }), ErrorCode::kUnsupported);
    EXPECT_EQ(code_with([](auto& w) { w.order = 77; }), ErrorCode::kUnsupported);
    EXPECT_EQ(code_with([](auto& w) { w.dtype = 9; }), ErrorCode::kUnsupported);
    for (auto field : {&wire::Layout::layers, &wire::Layout::kv_heads, &wire::Layout::head_dim, &wire::Layout::block_tokens,
                       &wire::Layout::blocks}) {
        EXPECT_EQ(code_with([&](auto& w) { w.*field = 0; }), ErrorCode::kCorrupt);
        EXPECT_EQ(code_with([&](auto& w) { w.*field = UINT32_MAX; }), ErrorCode::kCorrupt);
    }
    // Each in range, the product not.
    EXPECT_EQ(code_with([](auto& w) { w.layers = w.kv_heads = w.block_tokens = 1024, w.head_dim = 4096, w.blocks = 1 << 24; }),
              ErrorCode::kCorrupt);
    EXPECT_EQ(code_with([](auto& w) { w.page_format.clear(); }), ErrorCode::kCorrupt);
    EXPECT_EQ(code_with([](auto& w) { w.page_format.assign(1000, 'x'); }), ErrorCode::kCorrupt);
}

TEST(ChooseMover, ByHostAndLayout) {
    const auto a = layout_of(PoolOrder::kBlockFirst, 10), b = layout_of(PoolOrder::kKvFirst, 99);
    EXPECT_EQ(choose_mover(hello(a, "h"), hello(b, "h"), "").value(), "shm");
    EXPECT_EQ(choose_mover(hello(a, "h"), hello(b, "i"), "").value(), "tcp");
    EXPECT_EQ(choose_mover(hello(a, ""), hello(b, ""), "").value(), "tcp");
    EXPECT_EQ(choose_mover(hello(a, "h", false), hello(b, "h"), "").value(), "tcp");
    EXPECT_EQ(choose_mover(hello(a, "h"), hello(b, "h"), "tcp").value(), "tcp");
    EXPECT_EQ(choose_mover(hello(a, "h"), hello(b, "i"), "shm").error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(choose_mover(hello(a, "h"), hello(b, "h"), "nccl").error().code, ErrorCode::kUnsupported);
    auto undescribed = hello(b, "h");
    undescribed.layout.order = 0;
    EXPECT_EQ(choose_mover(hello(a, "h"), undescribed, "").error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(choose_mover(undescribed, hello(a, "h"), "tcp").error().code, ErrorCode::kUnsupported);
    auto other = a;
    other.head_dim = 16;
    EXPECT_NE(choose_mover(hello(a, "h"), hello(other, "h"), "").error().message.find("head dim 8 and 16"), std::string::npos);
    other = a;
    other.page_format = "test-2";
    EXPECT_EQ(choose_mover(hello(a, "h"), hello(other, "h"), "").error().code, ErrorCode::kUnsupported);
    auto model = hello(a, "h");
    model.model[0] = 1;
    EXPECT_EQ(choose_mover(hello(a, "h"), model, "").error().code, ErrorCode::kUnsupported);
}

TEST(ChooseMover, BetweenGpus) {
    const auto a = layout_of(PoolOrder::kBlockFirst, 10), b = layout_of(PoolOrder::kKvFirst, 99);
    const auto gpu = [](const kv::PoolLayout& l, std::string host, std::string uuid) {
        wire::LinkHello h = hello(l, std::move(host));
        h.device = true;
        h.gpu = std::move(uuid);
        h.maps_gpus = {h.gpu, "GPU-1"};
        h.nccl = true;
        return h;
    };
    const auto d = gpu(a, "h", "GPU-0"), p = gpu(b, "h", "GPU-1");
    EXPECT_EQ(choose_mover(d, p, "").value(), "cuda_ipc");
    EXPECT_EQ(choose_mover(d, gpu(b, "h", "GPU-0"), "").value(), "cuda_ipc");
    EXPECT_EQ(choose_mover(d, gpu(b, "i", "GPU-1"), "").value(), "nccl");
    EXPECT_EQ(choose_mover(d, gpu(b, "h", "GPU-9"), "").value(), "nccl");
    EXPECT_EQ(choose_mover(d, gpu(b, "h", ""), "").value(), "nccl") << "P's pool cannot be shared";
    auto over_tcp = d;
    over_tcp.wants_map = false;
    EXPECT_EQ(choose_mover(over_tcp, p, "").value(), "nccl");
    auto without = p;
    without.nccl = false;
    without.nccl_reason = "NCCL could not be opened: no such file";
    EXPECT_EQ(choose_mover(over_tcp, without, "").value(), "tcp");
    EXPECT_EQ(choose_mover(d, without, "").value(), "cuda_ipc");
    EXPECT_EQ(choose_mover(hello(a, "h"), p, "").value(), "tcp") << "a pool in host memory and one on a GPU";
    EXPECT_EQ(choose_mover(d, hello(b, "h"), "").value(), "tcp");
    for (const char* forced : {"cuda_ipc", "nccl", "tcp"}) EXPECT_EQ(choose_mover(d, p, forced).value(), forced);
    const auto reason = [](const wire::LinkHello& x, const wire::LinkHello& y, const char* forced) {
        const auto r = choose_mover(x, y, forced);
        return r ? "chose " + *r : r.error().message;
    };
    EXPECT_EQ(reason(d, p, "shm"), "mover shm needs both pools in host memory");
    EXPECT_EQ(reason(d, hello(b, "h"), "cuda_ipc"), "mover cuda_ipc needs both pools on GPUs");
    EXPECT_EQ(reason(d, gpu(b, "i", "GPU-1"), "cuda_ipc"), "mover cuda_ipc needs both replicas on one host");
    EXPECT_EQ(reason(d, gpu(b, "h", "GPU-9"), "cuda_ipc"), "mover cuda_ipc needs a GPU that can map the memory of GPU-9");
    EXPECT_EQ(reason(d, gpu(b, "h", ""), "cuda_ipc"), "mover cuda_ipc needs a pool that can be shared");
    EXPECT_EQ(reason(d, without, "nccl"), "mover nccl cannot be used by a side: NCCL could not be opened: no such file");
    EXPECT_EQ(reason(d, hello(b, "h"), "nccl"), "mover nccl needs both pools on GPUs");
    EXPECT_EQ(reason(d, p, "rdma"), "mover 'rdma' is unknown: cuda_ipc, nccl, shm and tcp are there");
}

TEST(PageCopy, AllOrdersAgree) {
    std::mt19937 rng(5);
    for (const auto from_order : {PoolOrder::kBlockFirst, PoolOrder::kKvFirst})
        for (const auto to_order : {PoolOrder::kBlockFirst, PoolOrder::kKvFirst}) {
            auto p = make_pool(layout_of(from_order, 12)), d1 = make_pool(layout_of(to_order, 17)), d2 = make_pool(layout_of(to_order, 17));
            const uint32_t n = 9, tokens = n * 4;
            const auto from = some_blocks(rng, 12, n), to = some_blocks(rng, 17, n);
            for (uint32_t l = 0; l < 3; ++l) write_layer(*p, from, 77, l, 0, tokens);
            for (const Extent& e : {Extent{0, 2, 0, 5}, Extent{2, 1, 0, 5}, Extent{0, 3, 5, 4}}) {
                copy_extent({d1->pool(), d1->layout(), to}, {p->pool(), p->layout(), from}, e);
                std::vector<std::byte> packed(e.pairs() * pair_bytes(p->layout()));
                gather_extent(packed, {p->pool(), p->layout(), from}, e);
                scatter_extent({d2->pool(), d2->layout(), to}, packed, e);
            }
            EXPECT_EQ(wrong_bytes(*d1, to, 77, 0, tokens), 0u);
            EXPECT_EQ(wrong_bytes(*d2, to, 77, 0, tokens), 0u);
            // The checksum does not depend on where pages lie.
            for (uint32_t i = 0; i < n; ++i)
                EXPECT_EQ(block_checksum(p->pool(), p->layout(), from[i]), block_checksum(d1->pool(), d1->layout(), to[i]));
            d1->pool()[d1->layout().page_offset(2, true, to[3])] ^= std::byte{1};
            EXPECT_NE(block_checksum(p->pool(), p->layout(), from[3]), block_checksum(d1->pool(), d1->layout(), to[3]));
        }
}

TEST(PageCopy, PackedOrderIsBlockLayerKv) {
    // The bytes on the wire, spelt out: a contract between versions.
    std::mt19937 rng(6);
    auto p = make_pool(layout_of(PoolOrder::kKvFirst, 12));
    const auto blocks = some_blocks(rng, 12, 4);
    for (uint32_t l = 0; l < 3; ++l) write_layer(*p, blocks, 5, l, 0, 16);
    const Extent e{1, 2, 1, 3};
    std::vector<std::byte> packed(e.pairs() * pair_bytes(p->layout()));
    gather_extent(packed, {p->pool(), p->layout(), blocks}, e);
    size_t at = 0;
    for (uint32_t block = 1; block < 4; ++block)
        for (uint32_t layer = 1; layer < 3; ++layer)
            for (const bool v : {false, true})
                for (uint32_t t = 0; t < 4; ++t)
                    for (size_t i = 0; i < token_bytes(p->layout()); ++i)
                        ASSERT_EQ(packed[at++], kv_byte(5, layer, v, block * 4 + t, i));
    EXPECT_EQ(at, packed.size());
}

}  // namespace
}  // namespace baton::xavier::test
