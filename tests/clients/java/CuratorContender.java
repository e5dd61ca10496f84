import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/**
 * Several threads that want the same lock by Curator's InterProcessMutex: HOSTS PATH COUNTER ROUNDS THREADS.
 *
 * <p>Inside the lock each reads a number from a file, takes its time, and writes the next one. It also makes a file that
 * must not be there yet. Without mutual exclusion increments are lost, and the file is found.
 */
public final class CuratorContender {
    public static void main(String[] arguments) throws Exception {
        int rounds = Integer.parseInt(arguments[3]);
        int threads = Integer.parseInt(arguments[4]);
        CuratorFramework client = CuratorFrameworkFactory.newClient(arguments[0], 10_000, 10_000, new RetryOneTime(100));
        client.start();
        List<Thread> running = new ArrayList<>();
        for (int thread = 0; thread < threads; thread++) {
            Thread contender = new Thread(() -> contend(client, arguments[1], Path.of(arguments[2]), rounds));
            contender.start();
            running.add(contender);
        }
        for (Thread contender : running) {
            contender.join();
        }
        client.close();
    }

    private static void contend(CuratorFramework client, String path, Path counter, int rounds) {
        try {
            // One for each thread: a mutex of Curator lets its own thread in again.
            InterProcessMutex mutex = new InterProcessMutex(client, path);
            for (int round = 0; round < rounds; round++) {
                mutex.acquire();
                enter(counter);
                mutex.release();
            }
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void enter(Path counter) throws Exception {
        Path inside = Path.of(counter + ".inside");
        Files.createFile(inside);
        int number = Integer.parseInt(Files.readString(counter));
        Thread.sleep(0, 500_000);
        Files.writeString(counter, String.valueOf(number + 1), StandardOpenOption.TRUNCATE_EXISTING);
        Files.delete(inside);
    }
}
