// Hive's metastore on 127.0.0.1. Its own main (HiveMetaStore, 2.3) listens on every interface and
// cannot be told otherwise, and asks nobody who he is.

import java.net.InetSocketAddress;
import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.IHMSHandler;
import org.apache.hadoop.hive.metastore.RetryingHMSHandler;
import org.apache.hadoop.hive.metastore.TSetIpAddressProcessor;
import org.apache.hadoop.hive.ql.txn.AcidHouseKeeperService;
import org.apache.thrift.server.TThreadPoolServer;
import org.apache.thrift.transport.TServerSocket;

public class LoopbackMetastore {
    public static void main(String[] args) throws Exception {
        HiveConf conf = new HiveConf(HiveMetaStore.class);
        IHMSHandler handler = RetryingHMSHandler.getProxy(
            conf, new HiveMetaStore.HMSHandler("lockkit", conf, false), true);
        new AcidHouseKeeperService().start(conf);  // takes the locks of the dead away
        InetSocketAddress here = new InetSocketAddress("127.0.0.1", Integer.parseInt(args[0]));
        TThreadPoolServer.Args serving = new TThreadPoolServer.Args(new TServerSocket(here));
        serving.processor(new TSetIpAddressProcessor(handler));
        new TThreadPoolServer(serving).serve();
    }
}
