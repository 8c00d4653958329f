#include <gtest/gtest.h>

#include "baton/net/connection.hpp"
#include "supervisor/local_worker.hpp"

namespace baton::supervisor {
namespace {

std::string advertised(const std::string& host, const std::string& link, const std::string& given = "") {
    config::SupervisorSettings s;
    s.host = host;
    s.link_address = link;
    s.advertise_address = given;
    return advertised_ip(s);
}

TEST(AdvertisedAddress, IsOneThatOthersCanUse) {
    const std::string route = net::default_route_ip();
    EXPECT_EQ(advertised("127.0.0.1", ""), "127.0.0.1");  // nothing leaves this host
    EXPECT_EQ(advertised("localhost", ""), "127.0.0.1");
    EXPECT_EQ(advertised("10.1.2.3", ""), "10.1.2.3");
    EXPECT_EQ(advertised("0.0.0.0", ""), route);
    EXPECT_EQ(advertised("::", ""), route);
    EXPECT_EQ(advertised("127.0.0.1", "10.1.2.4:7000"), "10.1.2.4");
    EXPECT_EQ(advertised("0.0.0.0", "[fd00::1]:7000"), "fd00::1");
    EXPECT_EQ(advertised("10.1.2.3", "0.0.0.0:7000"), route);
    EXPECT_EQ(advertised("0.0.0.0", "0.0.0.0:7000", "10.9.9.9"), "10.9.9.9");
}

TEST(AdvertisedAddress, OfHttpKeepsThePortAndARealAddress) {
    config::SupervisorSettings s;
    s.advertise_address = "10.9.9.9";
    EXPECT_EQ(advertised_http(s, "127.0.0.1:9997"), "127.0.0.1:9997");
    EXPECT_EQ(advertised_http(s, "0.0.0.0:9997"), "10.9.9.9:9997");
    s.advertise_address = "fd00::1";
    EXPECT_EQ(advertised_http(s, "[::]:9997"), "[fd00::1]:9997");
}

}  // namespace
}  // namespace baton::supervisor
