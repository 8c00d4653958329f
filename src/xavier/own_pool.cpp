#include "xavier/own_pool.hpp"

#include <chrono>
#include <thread>

#include "baton/base/digest.hpp"
#include "baton/base/log.hpp"
#include "baton/xavier/mover.hpp"

namespace baton::xavier {
namespace {

constexpr auto kSettleLook = std::chrono::microseconds(20);

}  // namespace

bool OwnPool::settled(uint64_t ticket) {
    if (ticket == 0 || device_ == nullptr || lost_) return true;
    const auto done = device_->done(ticket);
    if (done) return *done;
    lost_ = true;
    log::error("xavier.device_lost", {{"reason", done.error().message}});
    return true;
}

void OwnPool::settle(uint64_t ticket) {
    while (!settled(ticket)) std::this_thread::sleep_for(kSettleLook);
}

Expected<uint64_t> OwnPool::checksum(uint32_t block) {
    const kv::PoolLayout& l = layout();
    if (device_ == nullptr) return block_checksum(file_.bytes(), l, block);
    std::vector<std::byte> bytes(l.block_bytes());
    BATON_TRY_ASSIGN(const uint64_t ticket, device_->to_host({0, l.layers, {&block, 1}, {&block, 1}}, bytes));
    settle(ticket);
    if (lost_) return fail(ErrorCode::kIo, "the device is lost");
    // Packed pages are in the order of the checksum.
    uint64_t sum = 0;
    for (size_t at = 0; at < bytes.size(); at += l.page_bytes())
        sum = checksum64(std::span(bytes).subspan(at, l.page_bytes()), sum);
    return sum;
}

void OwnPool::corrupt(uint32_t block) {
    const kv::PoolLayout& l = layout();
    if (device_ == nullptr) {
        file_.pool()[l.page_offset(0, false, block)] ^= std::byte{1};
        return;
    }
    std::vector<std::byte> bytes(2 * l.page_bytes());
    const backend::PageCopy page{0, 1, {&block, 1}, {&block, 1}};
    if (const auto out = device_->to_host(page, bytes); out) settle(*out);
    bytes[0] ^= std::byte{1};
    if (const auto in = device_->from_host(page, bytes); in) settle(*in);
}

}  // namespace baton::xavier
