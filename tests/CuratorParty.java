// Curator's InterProcessMutex, driven by lines on stdin: acquire SECONDS, release.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

public class CuratorParty {
    public static void main(String[] args) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(args[0], new RetryOneTime(100));
        client.start();
        InterProcessMutex mutex = new InterProcessMutex(client, args[1]);
        BufferedReader told = new BufferedReader(new InputStreamReader(System.in));
        String line;
        while ((line = told.readLine()) != null) {
            if (line.startsWith("acquire ")) {
                long seconds = Long.parseLong(line.substring(8));
                System.out.println(mutex.acquire(seconds, TimeUnit.SECONDS));
            } else {
                mutex.release();
                System.out.println("released");
            }
        }
    }
}
