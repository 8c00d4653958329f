#include "supervisor/download_progress.hpp"

#include <gtest/gtest.h>

namespace baton::supervisor {
namespace {

TEST(DownloadProgress, ShowsTheSlowestWorker) {
    DownloadProgress progress;
    EXPECT_FALSE(progress.begun());
    EXPECT_EQ(progress.fraction(), 0.0);
    EXPECT_TRUE(progress.rows("", {0}).empty());
    progress.update("a", {1, 60, 100, {{"z", 50, 90, false}, {"c", 10, 10, true}}}, {1000});
    progress.update("b", {1, 20, 100, {{"z", 20, 90, false}}}, {1000});
    EXPECT_DOUBLE_EQ(progress.fraction(), 0.2);
    progress.update("a", {1, 80, 100, {{"z", 70, 90, false}, {"c", 10, 10, true}}}, {3000});
    const auto all = progress.rows("", {3000});
    ASSERT_EQ(all.size(), 2u);
    EXPECT_EQ(all[0]["name"], "c");
    EXPECT_EQ(all[0]["status"], "completed");
    EXPECT_EQ(all[0]["eta_seconds"], 0.0);
    EXPECT_EQ(all[1]["downloaded_bytes"], 20);
    EXPECT_TRUE(all[1]["speed_bytes_per_second"].is_null());
    const auto a = progress.rows("a", {3000});
    EXPECT_EQ(a[1]["downloaded_bytes"], 70);
    EXPECT_DOUBLE_EQ(a[1]["speed_bytes_per_second"], 10.0);
    EXPECT_DOUBLE_EQ(a[1]["eta_seconds"], 2.0);
    EXPECT_DOUBLE_EQ(a[1]["progress"], 70.0 / 90.0);
    EXPECT_DOUBLE_EQ(a[1]["elapsed_seconds"], 2.0);
}

TEST(DownloadProgress, OddNumbersNeverDivideByZero) {
    DownloadProgress progress;
    progress.update("a", {1, 0, 0, {{"empty", 0, 0, true}, {"unknown", 5, 0, false}, {"back", 9, 10, false}}}, {0});
    progress.update("a", {1, 0, 0, {{"back", 3, 10, false}}}, {0});
    EXPECT_EQ(progress.fraction(), 0.0);
    for (const auto& row : progress.rows("", {0})) {
        EXPECT_TRUE(row["progress"].is_number());
        EXPECT_TRUE(row["speed_bytes_per_second"].is_null());
    }
}

}  // namespace
}  // namespace baton::supervisor
